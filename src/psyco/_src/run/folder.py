"""The run folder: what a synthesis leaves behind, and how to read it again.

    config.toml          what is run: exact, complete, reusable
    requirement.props    the requirement as text
    metrics.csv          one row per generation, appended as the run goes
    checkpoints/         where learning stood, the newest few
    policy.safetensors   the outcome,
    certificate.json     and what was shown about it
    episodes.json        a few episodes of that policy, to be looked at
    run.json             when, with which versions, on what machine; in the end the checksums of the outcome
    run.log              what happened

Reading never fails on a folder that something happened to: what is wrong is collected in `Run.problems`. And it is
reading only: no environment is made, nothing that a file names is imported, nothing is connected to.
"""

from __future__ import annotations

import csv
import io
import json
import os
import platform
import shlex
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any, Literal

import numpy as np

from psyco._src.certify.certificate import Certificate
from psyco._src.domain.catalogue import needed_code
from psyco._src.errors import RunError
from psyco._src.learn.metrics import Metrics
from psyco._src.policy.file import Policy, load_policy
from psyco._src.run import durable
from psyco._src.run.checkpoint import FOLDER as CHECKPOINTS
from psyco._src.run.config import Config, is_sealed, read_config
from psyco._src.run.lock import is_locked

CONFIG, REQUIREMENT, METRICS = "config.toml", "requirement.props", "metrics.csv"
POLICY, CERTIFICATE, EPISODES = "policy.safetensors", "certificate.json", "episodes.json"
ABOUT, LOG = "run.json", "run.log"
OUTCOME = (POLICY, CERTIFICATE, EPISODES, METRICS)
FILES = (CONFIG, REQUIREMENT, METRICS, POLICY, CERTIFICATE, EPISODES, ABOUT, LOG)
DERIVED = ("report.html", "trajectory.png", "trajectory.gif")  # what other commands make of it

FORMAT = "psyco-run-1"


# ---- run.json -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class About:
    """What run.json says."""

    created: int  # when the run began, in seconds since 1970
    versions: dict[str, str]
    machine: dict[str, Any]
    outcome: dict[str, str]  # SHA-256 of the files of a finished run; empty before
    remark: str = ""  # of a finished run without a certificate: what stood in its way
    # Its shape and scaling, so that a run that goes on need not find them again.
    network: dict[str, Any] | None = None

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


@dataclass(frozen=True, repr=False)
class Run:
    """A run as it stands in its folder.

    `state` is "finished", "running", "stopped" or "damaged"; `certificate` is None before the run has finished, and
    `problems` says what is not as the run wrote it.
    """

    folder: Path
    config: Config | None
    about: About | None
    metrics: Metrics
    certificate: Certificate | None
    state: State
    problems: tuple[str, ...]

    def __repr__(self) -> str:
        verdict = f", {self.certificate.verdict.name}" if self.certificate else ""
        domain = self.config.domain if self.config else "unknown domain"
        return f"<Run {self.folder}: {domain}, {self.state}{verdict}, {self.episodes:,} episodes>"

    def _repr_html_(self) -> str:
        from psyco._src.certify.html import certificate_html

        return f"<p>{escape(repr(self)[1:-1])}</p>" + (
            certificate_html(self.certificate) if self.certificate else ""
        )

    @property
    def remark(self) -> str:
        """What stood in the way of a certificate and what would help; empty if there is one."""
        return self.about.remark if self.about else ""

    @property
    def policy(self) -> Policy:
        """The policy that the run ended with."""
        return load_policy(_policy_file(self))

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


def read_run(folder: Path) -> Run:
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
        problems += damaged_outcome(folder, about, config)
    if about is not None and not about.outcome:
        certificate = None  # of a shorter run, or not sealed yet: `psyco resume` makes it again
    state: State = "running" if running else "damaged" if problems else "finished" if finished else "stopped"
    return Run(folder, config, about, metrics, certificate, state, tuple(dict.fromkeys(problems)))


def damaged_outcome(folder: Path, about: About | None, config: Config | None) -> list[str]:
    """Which files of a finished run are not what the run wrote."""
    problems = []
    for name, checksum in about.outcome.items() if about else ():
        try:
            if durable.digest((folder / name).read_bytes()) != checksum:
                problems.append(
                    f"{folder / name} is not what the run wrote (its checksum is wrong); "
                    f"`{resume_hint(folder, config)}` makes it again"
                )
        except OSError as error:
            problems.append(
                f"{folder / name}: {error.strerror}; `{resume_hint(folder, config)}` makes it again"
            )
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
                name: np.array(cells, dtype=str)
                if name == "verdict"
                else np.array([int(cell) for cell in cells], np.int64)
                if name in ("generation", "episodes")
                else np.array([float(cell) if cell else np.nan for cell in cells], float)
                for name, cells in columns.items()
            }
        )
    except ValueError as error:
        raise RunError(f"{path} is damaged: {error}") from None


def load_certificate(path: Path) -> Certificate:
    """Read a certificate; that it is what the run wrote is for `damaged_outcome` to say."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RunError(f"{path} is damaged: {error}") from None
    return Certificate.from_json(text, origin=str(path), strict=False)


def load_episodes(run: Run) -> dict[str, Any] | None:
    """The episodes that the run kept, for pages to play; None if there are none or if they can't be read."""
    try:
        content = json.loads((run.folder / EPISODES).read_bytes())
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None


def _policy_file(run: Run) -> Path:
    path = run.folder / POLICY
    if not path.exists():
        hint = resume_hint(run.folder, run.config)
        raise RunError(f"{run.folder} holds no policy yet: the run has not finished; go on with: {hint}")
    for problem in run.problems:
        if POLICY in problem:
            raise RunError(problem)
    return path


def resume_hint(folder: Path, config: Config | None, *options: str) -> str:
    """The command that goes on with a run, as a shell takes it."""
    named = needed_code(config.description) if config else []
    return " ".join(
        ["psyco resume", shlex.quote(str(folder)), *options, *(f"--trust {shlex.quote(n)}" for n in named)]
    )
