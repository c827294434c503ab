"""Learners for tests: fields of the task and options as flat keywords."""

from dataclasses import fields
from typing import Any, TypeVar

from psyco._src.learners.base import LearnerOptions, LearningTask

L = TypeVar("L", bound=LearnerOptions)
TASK = {field.name for field in fields(LearningTask)}


def bind(learner: type[L], **keywords: Any) -> L:
    """Return a learner with a task; keywords are fields of `LearningTask`, or options of the learner."""
    task = LearningTask(**{name: keywords.pop(name) for name in TASK & keywords.keys()})
    return learner(task=task, **keywords)
