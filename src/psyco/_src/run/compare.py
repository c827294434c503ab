"""What differs between runs."""

from __future__ import annotations

import dataclasses
from typing import Any

from psyco._src.run.config import Config
from psyco._src.run.folder import Record

ABSENT = "–"


def flat_config(config: Config) -> dict[str, Any]:
    """A configuration as one level of dotted keys: `learner.alpha` -> 0.01."""
    settings = dataclasses.asdict(config.settings)
    learner = {"name": settings.pop("learner"), **settings.pop("options")}
    tables = {
        "domain": {"name": config.domain, **config.parameters},
        "learner": learner,
        "settings": settings,
        "execution": config.execution,
    }
    flat = {f"{table}.{key}": value for table, values in tables.items() for key, value in values.items()}
    return {"requirement": config.requirement.strip(), **flat}


def config_differences(records: list[Record]) -> dict[str, list[Any]]:
    """For every key on which the runs differ, the value that each has."""
    configs = [flat_config(record.config) if record.config else {} for record in records]
    keys = dict.fromkeys(key for config in configs for key in config)
    values = {key: [config.get(key, ABSENT) for config in configs] for key in keys}
    return {key: row for key, row in values.items() if any(value != row[0] for value in row)}
