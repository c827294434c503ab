"""Small runs for tests: settings and learner options as flat keywords, and a record of training."""

from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

import psyco
from psyco._src.core.options import declared
from psyco._src.envs.base import Domain
from psyco._src.learners.metrics import Metrics, concatenate
from psyco._src.logic.parser import parse
from psyco._src.rollout.execution import Execution
from psyco._src.runs.problem import Problem, prepare
from psyco._src.runs.settings import Settings
from psyco._src.runs.train import Callback, TrainingState, learn


def make_settings(**settings: Any) -> Settings:
    """Return settings; other keywords are options of the learner."""
    own = {field.name for field in fields(Settings)} - {"options"}
    options = {name: value for name, value in settings.items() if name not in own}
    return Settings(**{name: settings[name] for name in own & set(settings)}, options=options)


def prepared(domain: Domain, requirement: str, **settings: Any) -> Problem:
    return prepare(domain, parse(requirement), make_settings(**settings))


class Learned(NamedTuple):
    at: TrainingState  # the end
    metrics: Metrics
    reached: list[TrainingState]


def learned(problem: Problem, start: TrainingState | None = None) -> Learned:
    parts: list[Metrics] = []
    reached: list[TrainingState] = []
    callback = Callback(
        on_metrics=lambda _, rows: parts.append(rows),
        on_checkpoint=lambda _, position: reached.append(position),
    )
    return Learned(learn(problem, [callback], start), concatenate(parts), reached)


def stopped_and_resumed(
    domain: Domain, requirement: str, folder: Path, *, trust: list[str], **arguments: Any
) -> psyco.Result:
    """Return the result of a run that was stopped after its first generation."""
    generations = iter(range(100))
    stop = psyco.Callback(should_stop=lambda: next(generations) >= 1)
    stopped = psyco.start(domain, requirement, folder / "run", callbacks=[stop], **arguments)
    assert stopped.certificate is None
    return psyco.resume(folder / "run", trust=trust)


def flat(**keywords: Any) -> dict[str, Any]:
    """Return the keywords of a public function, with settings and execution options collected into their objects.

    Keywords that the function takes itself (`episodes`, `seed`, `learner`, ...) stay.
    """
    own = ("episodes", "steps", "seed", "learner")
    settings = {name: keywords.pop(name) for name in declared(Settings) if name in keywords and name not in own}
    if options := keywords.pop("options", None):
        settings["options"] = options
        if "learner" in keywords:
            settings["learner"] = keywords.pop("learner")
    if settings:
        keywords["settings"] = Settings(**settings)
    return with_execution(**keywords)


def with_execution(**keywords: Any) -> dict[str, Any]:
    """Return the keywords of a public function, with execution options collected into `execution`."""
    execution = {name: keywords.pop(name) for name in declared(Execution) if name in keywords}
    return {**keywords, "execution": Execution(**execution)} if execution else keywords
