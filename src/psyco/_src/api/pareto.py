"""What a stricter requirement costs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from psyco._src.api.argument_check import verb
from psyco._src.studies.pareto import ParetoFront, default_front_folder, run_front
from psyco._src.studies.pareto_spec import ask
from psyco._src.studies.study_progress import StudyProgress


@verb
def front(
    domain: str,
    formula: str,
    folder: str | Path | None = None,
    *,
    p: str | float | Sequence[float] | None = None,
    points: int | None = None,
    vary: str | None = None,
    seeds: int = 5,
    seed: int = 0,
    confidence: float = 0.95,
    parameters: Mapping[str, Any] | None = None,
    learner: str | None = None,
    learner_options: Mapping[str, Any] | None = None,
    settings: Mapping[str, Any] | None = None,
    workers: int | None = None,
    ray: str | None = None,
    trust: Collection[str] = (),
    on_progress: Callable[[StudyProgress], None] = lambda progress: None,
) -> ParetoFront:
    """Learn along required probabilities, certify every policy, and show return against certified probability.

    All certificates hold together with `confidence`: each of m is issued at 1 - (1 - confidence)/m. On finite domains
    the exact front is drawn beside. Every run is a cell of a study: the same again goes on after an interruption.

    Args:
        domain: its name.
        formula: what must hold with the required probability, as in `G (distance >= 0.1 | collisions <= 1)`.
        folder: of the front; by default below `studies/`, the same for the same front.
        p: required probabilities: a range as in `"0.5:0.99"`, the default, or a list; with `vary` a single one, 0.9.
        points: how many, evenly spread over the range; by default 8, with `vary` over whole numbers all of them.
        vary: a parameter of the formula and its range instead, as in `"n=0:5"`; it stands in the formula as a word.
        seeds: runs of every point.
        seed: the first of them.
        confidence: that all certificates hold together.
        parameters: of the domain.
        learner: how to learn; by default that of `synthesize`.
        learner_options: its hyperparameters, where they differ from its defaults.
        settings: others of a run, as in `{"episodes": 20_000, "hidden": 64}`.
        workers: runs at the same time, each in a process of its own; by default one for each core.
        ray: the address of a Ray cluster to run on instead, or "local".
        trust: code (`module:name`) that may be imported besides what the domain is made of.
        on_progress: called when something has happened, and about twice a second.

    Returns:
        The front, with its points and its study; its tables and its page are in its folder.
    """
    asked = ask(
        domain,
        formula,
        p=p,
        points=points,
        vary=vary,
        seeds=seeds,
        seed=seed,
        confidence=confidence,
        parameters=parameters,
        learner=learner,
        learner_options=learner_options,
        settings=settings,
    )
    where = default_front_folder(asked) if folder is None else Path(folder)
    named = [*trust, *asked.plan.code]
    return run_front(asked, where, workers=workers, ray=ray, trust=named, on_progress=on_progress)
