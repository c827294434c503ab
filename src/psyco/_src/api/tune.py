"""Better options for a learner, or the word that the defaults are as good."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from psyco._src.api.argument_check import verb
from psyco._src.logic.requirement import AnyRequirement, as_requirement
from psyco._src.studies.search_config import AT_ONCE, FINALS, JUDGES, TRIALS, SearchConfig, ask_search
from psyco._src.studies.study_progress import StudyProgress
from psyco._src.studies.tuning import Tuning, default_tune_folder, run_tuning


@verb
def tune(
    domain: str,
    requirement: AnyRequirement | None = None,
    folder: str | Path | None = None,
    *,
    trials: int = TRIALS,
    over: Sequence[str] | Mapping[str, str] | None = None,
    seed: int = 0,
    at_once: int = AT_ONCE,
    finals: int = FINALS,
    judges: int = JUDGES,
    parameters: Mapping[str, Any] | None = None,
    learner: str | None = None,
    learner_options: Mapping[str, Any] | None = None,
    settings: Mapping[str, Any] | None = None,
    workers: int | None = None,
    ray: str | None = None,
    trust: Collection[str] = (),
    on_progress: Callable[[StudyProgress], None] = lambda progress: None,
    on_news: Callable[[str], None] = lambda news: None,
) -> Tuning:
    """Search a learner's options for the best certified return, and judge what was found against the defaults.

    Every trial is a run; those below the median of earlier ones are ended at half or three quarters of learning. The
    best three are run again, and the best of these is compared with the defaults at equal budget, each time with seeds
    that nobody has seen before. The same again goes on after an interruption; with more trials it computes those alone.

    Args:
        domain: its name.
        requirement: what must hold, as text, as the name of a file, or parsed.
        folder: of the tuning; by default below `studies/`, the same for the same tuning.
        trials: how many sets of options; the first is the defaults.
        over: which options, with ranges or values of your own where you like, as in `["alpha", "sigma=0.05:0.5",
            "population=10,20"]`; by default those that the learner declares.
        seed: the first of the search; what is proposed is a function of it, too.
        at_once: trials that are proposed together, so that they can run side by side. The outcome depends on it.
        finals: further runs of each of the best three trials.
        judges: runs of the tuned options and of the defaults in the end.
        parameters: of the domain.
        learner: whose options; by default those of "safe-es".
        learner_options: those that are not tuned, where they differ from its defaults.
        settings: others of a run, as in `{"episodes": 2_000, "hidden": 64}`.
        workers: runs at the same time, each in a process of its own; by default one for each core.
        ray: the address of a Ray cluster to run on instead, or "local".
        trust: code (`module:name`) that may be imported besides what the domain is made of.
        on_progress: called when something has happened to a run, and about twice a second.
        on_news: called with a sentence after every round of trials.

    Returns:
        The tuning; `config.toml`, `trials.csv` and its page are in its folder.
    """
    search = as_search(
        domain,
        requirement,
        trials=trials,
        over=over,
        seed=seed,
        at_once=at_once,
        finals=finals,
        judges=judges,
        parameters=parameters,
        learner=learner,
        learner_options=learner_options,
        settings=settings,
    )
    where = default_tune_folder(search) if folder is None else Path(folder)
    named = [*trust, *search.ends().code]
    return run_tuning(
        search, where, workers=workers, ray=ray, trust=named, on_progress=on_progress, on_news=on_news
    )


def as_search(domain: str, requirement: AnyRequirement | None, **asked: Any) -> SearchConfig:
    """The search that these words describe; a requirement may be a file."""
    parsed = None if not requirement else as_requirement(requirement)
    text = None if parsed is None else parsed.text.strip() or str(parsed)
    return ask_search(domain, text, **asked)
