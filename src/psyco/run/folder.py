"""The run folder: what a synthesis leaves behind, and how to read it again."""

from __future__ import annotations

import dataclasses
import tomllib
from pathlib import Path
from typing import Any

import tomli_w

from psyco.domain.base import parameters
from psyco.errors import RunError
from psyco.learn.metrics import Metrics
from psyco.policy import Policy, load_policy
from psyco.synthesis import Problem
from psyco.verification.certificate import Certificate

POLICY, REQUIREMENT, CONFIG = "policy.safetensors", "requirement.props", "config.toml"
METRICS, CERTIFICATE = "metrics.csv", "certificate.json"


def start_run(folder: Path, problem: Problem) -> None:
    """Write down what will be run, before it runs; a folder that holds a run already is refused."""
    if folder.exists() and any(folder.iterdir()):
        raise RunError(f"{folder} is not empty; choose another --out, or remove it")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / REQUIREMENT).write_text(f"{problem.requirement}\n")
    config = {
        "domain": {"name": problem.domain.name, **parameters(problem.domain)},
        "settings": dataclasses.asdict(problem.settings),
    }
    (folder / CONFIG).write_text(tomli_w.dumps(config))
    (folder / METRICS).write_text("")


def add_metrics(folder: Path, rows: Metrics) -> None:
    """Append rows to the metrics."""
    with (folder / METRICS).open("a") as file:
        file.write(rows.to_csv(header=file.tell() == 0))


def finish_run(folder: Path, policy: Policy, certificate: Certificate) -> None:
    """Write the outcome."""
    policy.save(folder / POLICY)
    (folder / CERTIFICATE).write_text(certificate.to_json())


def read_config(folder: Path) -> dict[str, Any]:
    """The configuration of a run."""
    try:
        return tomllib.loads((folder / CONFIG).read_text())
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise RunError(f"{folder} is not a run folder, or it is damaged ({error})") from None


def find_policy(path: Path) -> tuple[Policy, str | None]:
    """The policy of a file or a run folder, and the requirement that a run was made for."""
    if not path.is_dir():
        return load_policy(path), None
    requirement = path / REQUIREMENT
    if not (path / POLICY).exists():
        raise RunError(f"{path} holds no policy: not a run folder, or a run that has not finished")
    return load_policy(path / POLICY), requirement.read_text() if requirement.exists() else None
