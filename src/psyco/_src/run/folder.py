"""The run folder: what a synthesis leaves behind, and how to read it again.

    config.toml          what is run: exact, complete, reusable
    requirement.props    the requirement as text
    metrics.csv          one row per generation, appended as the run goes
    checkpoints/         where learning stood, the newest few
    policy.safetensors   the outcome,
    certificate.json     and what was shown about it
    run.json             when, with which versions, on what machine; in the end the checksums of the outcome
    run.log              what happened

Reading never fails on a folder that something happened to: what is wrong is collected in `Record.problems`.
"""

from __future__ import annotations

import csv
import io
import json
import os
import platform
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

import numpy as np

from psyco._src.errors import RunError
from psyco._src.learn.metrics import Metrics
from psyco._src.policy.file import Policy, load_policy
from psyco._src.run import durable
from psyco._src.run.checkpoint import FOLDER as CHECKPOINTS
from psyco._src.run.config import Config, is_sealed, read_config
from psyco._src.run.lock import is_locked
from psyco.version import __version__

CONFIG, REQUIREMENT, METRICS = "config.toml", "requirement.props", "metrics.csv"
POLICY, CERTIFICATE = "policy.safetensors", "certificate.json"
ABOUT, LOG = "run.json", "run.log"
OUTCOME = (POLICY, CERTIFICATE, METRICS)
FILES = (CONFIG, REQUIREMENT, METRICS, POLICY, CERTIFICATE, ABOUT, LOG)

FORMAT = "psyco-run-1"
PACKAGES = ("jax", "jaxlib", "numpy", "scipy", "optax", "gymnasium")  # whose versions may change a result


# ---- run.json -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class About:
    """What run.json says."""

    created: int  # when the run began, in seconds since 1970
    versions: dict[str, str]
    machine: dict[str, Any]
    outcome: dict[str, str]  # SHA-256 of the files of a finished run; empty before

    def save(self, folder: Path) -> None:
        """Write run.json."""
        content = {"format": FORMAT, **vars(self)}
        content["sha256"] = durable.digest(_canonical(content))
        durable.write(folder / ABOUT, (json.dumps(content, indent=2) + "\n").encode())


def load_about(folder: Path) -> About:
    """Read run.json; RunError says what is wrong with it."""
    path = folder / ABOUT
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        checksum = content.pop("sha256")
        if content.pop("format") != FORMAT:
            raise RunError(f"{path} was written by another version of PSyCo")
        if checksum != durable.digest(_canonical({"format": FORMAT, **content})):
            raise RunError(f"{path} is damaged: its checksum is wrong")
        return About(**content)
    except FileNotFoundError:
        raise RunError(f"{path} is missing") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise RunError(f"{path} is damaged: {error}") from None


def versions() -> dict[str, str]:
    """Of everything that may change a result."""
    found = {"psyco": __version__, "python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def machine() -> dict[str, Any]:
    """What a run is computed on; nothing that names its owner."""
    import jax

    cpu = platform.processor()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        cpu = next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": cpu,
        "cores": os.cpu_count(),
        "devices": sorted({device.device_kind for device in jax.devices()}),
    }


def _canonical(content: dict[str, Any]) -> bytes:
    return json.dumps(content, sort_keys=True).encode()


# ---- reading ------------------------------------------------------------------------------------------------

State = Literal["finished", "running", "stopped", "damaged"]


@dataclass(frozen=True)
class Record:
    """A run as it stands in its folder."""

    folder: Path
    config: Config | None
    about: About | None
    metrics: Metrics
    certificate: dict[str, Any] | None
    state: State
    problems: tuple[str, ...]

    @property
    def episodes(self) -> int:
        """Training episodes done."""
        return int(self.metrics["episodes"][-1]) if self.metrics.rows else 0

    @property
    def progress(self) -> float:
        """The share of the work that is done, 0 to 1; a run may finish before its episodes are spent."""
        if self.state == "finished":
            return 1.0
        if self.config is None:
            return 0.0
        return min(1.0, self.episodes / self.config.settings.episodes)


def is_run(folder: Path) -> bool:
    """Whether a folder looks like that of a run."""
    return (folder / CONFIG).is_file() or (folder / CHECKPOINTS).is_dir()


def find_runs(folder: Path) -> list[Path]:
    """The run folders in a folder, or itself if it is one."""
    if not folder.is_dir():
        raise RunError(f"there is no folder {folder}")
    if is_run(folder):
        return [folder]
    return sorted(path for path in folder.iterdir() if path.is_dir() and is_run(path))


def read_run(folder: Path) -> Record:
    """Read a run, also one that is still going on or that something happened to."""
    if not is_run(folder):
        raise RunError(f"{folder} is not a run folder: it has no {CONFIG}")
    problems: list[str] = []
    config, about, metrics, certificate = None, None, Metrics({}), None
    running = is_locked(folder)
    try:
        text = (folder / CONFIG).read_text(encoding="utf-8")
        if not is_sealed(text):
            problems.append(f"{folder / CONFIG} was changed or damaged after the run began")
        config = read_config(text, str(folder / CONFIG))
    except (RunError, OSError, UnicodeDecodeError) as error:
        problems.append(str(error))
    try:
        about = load_about(folder)
    except RunError as error:
        problems.append(str(error))
    try:
        metrics = load_metrics(folder / METRICS)
    except RunError as error:
        problems.append(str(error))
    if (folder / CERTIFICATE).exists():
        try:
            certificate = load_certificate(folder / CERTIFICATE)
        except RunError as error:
            problems.append(str(error))
    finished = about is not None and bool(about.outcome) and not running
    if finished:
        problems += damaged_outcome(folder, about)
    if about is not None and not about.outcome:
        certificate = None  # of a shorter run, or not sealed yet: `psyco resume` makes it again
    state: State = "running" if running else "damaged" if problems else "finished" if finished else "stopped"
    return Record(folder, config, about, metrics, certificate, state, tuple(dict.fromkeys(problems)))


def damaged_outcome(folder: Path, about: About | None) -> list[str]:
    """Which files of a finished run are not what the run wrote."""
    problems = []
    for name, checksum in about.outcome.items() if about else ():
        try:
            if durable.digest((folder / name).read_bytes()) != checksum:
                problems.append(
                    f"{folder / name} is not what the run wrote (its checksum is wrong); "
                    f"`psyco resume {folder}` makes it again"
                )
        except OSError as error:
            problems.append(f"{folder / name}: {error.strerror}; `psyco resume {folder}` makes it again")
    return problems


def load_metrics(path: Path) -> Metrics:
    """Read a metrics table; a last line that is still being written is left out."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return Metrics({})
    except (OSError, UnicodeDecodeError) as error:
        raise RunError(f"{path} is damaged: {error}") from None
    rows = list(csv.reader(io.StringIO(text[: text.rfind("\n") + 1])))
    if not rows:
        return Metrics({})
    names, body = rows[0], rows[1:]
    if missing := {"episodes", "return", "satisfied", "c_sat", "lambda", "verdict"} - set(names):
        raise RunError(f"{path} is damaged: it has no column {min(missing)!r}")
    if "" in (row[names.index("episodes")] for row in body if len(row) == len(names)):
        raise RunError(f"{path} is damaged: a row has no number of episodes")
    try:
        columns = dict(zip(names, zip(*body, strict=True), strict=True)) if body else dict.fromkeys(names, ())
        return Metrics(
            {
                name: np.array(cells)
                if name == "verdict"
                else np.array([float(cell) if cell else np.nan for cell in cells])
                for name, cells in columns.items()
            }
        )
    except ValueError as error:
        raise RunError(f"{path} is damaged: {error}") from None


def load_certificate(path: Path) -> dict[str, Any]:
    """Read a certificate as plain data."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RunError(f"{path} is damaged: {error}") from None
    if not isinstance(content, dict) or "verdict" not in content:
        raise RunError(f"{path} is damaged: it is not a certificate")
    findings = content.get("findings") or []
    if not isinstance(findings, list) or not all(isinstance(finding, dict) for finding in findings):
        raise RunError(f"{path} is damaged: its findings are not those of a certificate")
    return content


def find_policy(path: Path) -> tuple[Policy, str | None]:
    """The policy of a file or a run folder, and the requirement that a run was made for."""
    if not path.is_dir():
        return load_policy(path), None
    if not is_run(path):
        raise RunError(f"{path} is not a run folder: it has no {CONFIG}")
    if not (path / POLICY).exists():
        raise RunError(
            f"{path} holds no policy yet: the run has not finished; go on with: psyco resume {path}"
        )
    record = read_run(path)
    for problem in record.problems:
        if POLICY in problem or record.config is None:
            raise RunError(problem)
    return load_policy(path / POLICY), record.config.requirement if record.config else None
