"""What differs between runs."""

from __future__ import annotations

import dataclasses
from typing import Any

from psyco._src.runs.config import Config
from psyco._src.runs.store import Run

ABSENT = "–"


def flat_config(config: Config) -> dict[str, Any]:
    """A configuration as one level of dotted keys: `learner.alpha` -> 0.01."""
    settings = dataclasses.asdict(config.settings)
    learner = {"name": settings.pop("learner"), **settings.pop("options")}
    tables = {
        "domain": {"name": config.domain, **config.parameters},
        "learner": learner,
        "settings": settings,
    }
    flat = {f"{table}.{key}": value for table, values in tables.items() for key, value in values.items()}
    return {"requirement": config.requirement.strip(), **flat}


def config_differences(runs: list[Run]) -> dict[str, list[Any]] | None:
    """For every key on which the runs differ, the value that each has; None if one of them can't be read."""
    configs = [flat_config(run.config) for run in runs if run.config is not None]
    if len(configs) < len(runs):
        return None
    keys = dict.fromkeys(key for config in configs for key in config)
    values = {key: [config.get(key, ABSENT) for config in configs] for key in keys}
    return {key: row for key, row in values.items() if any(value != row[0] for value in row)}
