"""Runs made quickly: settings and hyperparameters in one go, and what learning told on its way."""

from dataclasses import fields
from typing import Any, NamedTuple

from psyco._src.envs.base import Domain
from psyco._src.learners.metrics import Metrics, concatenate
from psyco._src.logic.parser import parse
from psyco._src.runs.problem import Problem, prepare
from psyco._src.runs.settings import Settings
from psyco._src.runs.train import Callback, TrainingState, learn


def make_settings(**settings: Any) -> Settings:
    """Settings; what they don't have is an option of the learner."""
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
    sink = Callback(
        rows=lambda _, rows: parts.append(rows), reached=lambda _, position: reached.append(position)
    )
    return Learned(learn(problem, [sink], start), concatenate(parts), reached)
