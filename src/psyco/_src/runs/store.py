"""The run folder: what a synthesis leaves behind, and how to read it again.

    config.toml          what is run: exact, complete, reusable
    requirement.props    the requirement as text
    start.safetensors    the policy that learning starts from, if there is one
    metrics.csv          one row per generation, appended as the run goes
    checkpoints/         where learning stood, the newest few
    policy.safetensors   the outcome,
    certificate.json     and what was shown about it
    looks.json           every test of a policy of this run: who looks again takes fresh episodes and the next share
    episodes.json        a few episodes of that policy, to be looked at
    run.json             when, with which versions, on what machine; in the end the checksums of the outcome
    run.log              what happened

Reading never fails on a folder that something happened to: what is wrong is collected in `Run.problems`. And it is
reading only: no environment is made, nothing that a file names is imported, nothing is connected to.
"""

from __future__ import annotations

import csv
import json
import os
import platform
import shlex
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from html import escape
from pathlib import Path
from typing import Any, Literal

import numpy as np

from psyco._src.core import atomic_io
from psyco._src.verification.certificate import Certificate
from psyco._src.verification.ledger import Ledger, entries_of
from psyco._src.envs.registry import needed_code
from psyco._src.core.errors import MissingFileError, RunError
from psyco._src.learners.metrics import Metrics, from_csv
from psyco._src.policies.serialization import Policy, load_policy
from psyco._src.core.safe_io import check_kinds, from_json, leads_out, read_bytes, read_text
from psyco._src.rollout.episodes import Stream
from psyco._src.runs.checkpoint import FOLDER as CHECKPOINTS
from psyco._src.runs.config import Config, is_sealed, read_config
from psyco._src.runs.lock import is_locked, lock

CONFIG, REQUIREMENT, METRICS = "config.toml", "requirement.props", "metrics.csv"
POLICY, CERTIFICATE, EPISODES = "policy.safetensors", "certificate.json", "episodes.json"
ABOUT, LOG, LOOKS = "run.json", "run.log", "looks.json"
START = "start.safetensors"
# Episodes of the generation under way, and those of candidates while they are compared and certified.
GENERATION, PLAYED = "generation.safetensors", "played.safetensors"
OUTCOME = {  # and what kind of file each is
    POLICY: "policy",
    CERTIFICATE: "certificate",
    EPISODES: "sample episodes",
    METRICS: "table of metrics",
}
FILES = (
    *(CONFIG, REQUIREMENT, START, METRICS, POLICY, CERTIFICATE),
    *(EPISODES, ABOUT, LOG, LOOKS, GENERATION, PLAYED),
)
DERIVED = ("report.html", "trajectory.png", "trajectory.gif")  # what other commands make of it

FORMAT = "psyco-run-1"
LATEST = 2**37  # seconds since 1970: beyond any date that can be printed


# ---- run.json -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RunInfo:
    """What run.json says."""

    created: int  # when the run began, in seconds since 1970
    versions: dict[str, str]
    machine: dict[str, Any]
    outcome: dict[str, str]  # SHA-256 of the files of a finished run; empty before
    remark: str = ""  # of a finished run without a certificate: what stood in its way
    # Its shape and scaling, so that a run that goes on need not find them again.
    network: dict[str, Any] | None = None
    ledger: bool = False  # there is an account of looks, and should be
    learner: str = ""  # which one was chosen and why, where none was named
    # How long it took: "learning", and "certifying" with the selection.
    seconds: dict[str, float] = field(default_factory=dict)

    def save(self, folder: Path) -> None:
        """Write run.json."""
        content = {"format": FORMAT, **vars(self)}
        content["sha256"] = atomic_io.digest(_canonical(content))
        atomic_io.write(folder / ABOUT, (json.dumps(content, indent=2) + "\n").encode())


def load_about(folder: Path) -> RunInfo:
    """Read run.json; RunError says what is wrong with it."""
    path = folder / ABOUT
    content = from_json(read_bytes(path, "description of a run", inside=folder), str(path))
    try:
        checksum = content.pop("sha256")
        if content.pop("format") != FORMAT:
            raise RunError(f"{path} was written by another version of PSyCo")
        if checksum != atomic_io.digest(_canonical({"format": FORMAT, **content})):
            raise RunError(f"{path} is damaged: its checksum is wrong")
        about = RunInfo(**content)
        check_kinds(about, str(path))
        _check(about)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise RunError(f"{path} is damaged: {error}") from None
    return about


def _check(about: RunInfo) -> None:
    """A checksum is soon computed: what it seals must make sense, too, and name no files but those of a run."""
    if not 0 <= about.created < LATEST:
        raise ValueError(f"created is {about.created!r}")
    for phase, seconds in about.seconds.items():
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds < LATEST:
            raise ValueError(f"{phase!r} took {seconds!r} seconds")
    for name, value in {**about.versions, **about.outcome}.items():
        if not isinstance(value, str) or (name in about.outcome and name not in OUTCOME):
            raise ValueError(f"{name!r} is {value!r}")


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
    about: RunInfo | None
    metrics: Metrics
    certificate: Certificate | None
    state: State
    problems: tuple[str, ...]

    def __repr__(self) -> str:
        verdict = f", {self.certificate.verdict.name}" if self.certificate else ""
        domain = self.config.domain if self.config else "unknown domain"
        return f"<Run {self.folder}: {domain}, {self.state}{verdict}, {self.episodes:,} episodes>"

    def _repr_html_(self) -> str:
        from psyco._src.verification.certificate_html import certificate_html

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
    def steps(self) -> int:
        """Training steps done."""
        if not self.metrics.rows:
            return 0
        each = np.diff(self.metrics["episodes"], prepend=0)  # of a generation
        return round(float(np.sum(each * self.metrics["length"])))

    @property
    def progress(self) -> float:
        """The share of the work that is done, 0 to 1; a run may finish before its episodes are spent."""
        if self.state == "finished":
            return 1.0
        if self.config is None:
            return 0.0
        settings = self.config.settings
        done = self.steps / settings.steps if settings.steps else self.episodes / settings.episodes
        return min(1.0, done)


def is_run(folder: Path) -> bool:
    """Whether a folder looks like that of a run."""
    return os.path.lexists(folder / CONFIG) or os.path.isdir(folder / CHECKPOINTS)


def find_runs(folder: Path) -> list[Path]:
    """The run folders in a folder, or itself if it is one."""
    if is_run(folder):
        return [folder]
    try:
        return sorted(path for path in folder.iterdir() if path.is_dir() and is_run(path))
    except FileNotFoundError:
        raise RunError(f"there is no folder {folder}") from None
    except (OSError, ValueError) as error:  # ValueError: a name with a NUL in it
        raise RunError(f"cannot look into {folder}: {getattr(error, 'strerror', None) or error}") from None


def read_run(folder: Path) -> Run:
    """Read a run, also one that is still going on or that something happened to."""
    if not is_run(folder):
        raise RunError(f"{folder} is not a run folder: it has no {CONFIG}")
    problems: list[str] = []
    config, about, metrics, certificate = None, None, Metrics({}), None
    running = is_locked(folder)
    try:
        text = read_text(folder / CONFIG, "configuration", inside=folder)
        if not is_sealed(text):
            problems.append(f"{folder / CONFIG} was changed or damaged after the run began")
        config = read_config(text, str(folder / CONFIG))
    except RunError as error:
        problems.append(str(error))
    try:
        about = load_about(folder)
    except RunError as error:
        problems.append(str(error))
    try:
        metrics = load_metrics(folder)
    except RunError as error:
        problems.append(str(error))
    try:
        certificate = load_certificate(folder)
    except MissingFileError:
        pass
    except RunError as error:
        problems.append(str(error))
    finished = about is not None and bool(about.outcome) and not running
    if finished:
        problems += damaged_outcome(folder, about, config)
    if about is not None and not about.outcome:
        certificate = None  # of a shorter run, or not sealed yet: `psyco resume` makes it again
    state: State = "running" if running else "damaged" if problems else "finished" if finished else "stopped"
    return Run(folder, config, about, metrics, certificate, state, tuple(dict.fromkeys(problems)))


def damaged_outcome(folder: Path, about: RunInfo | None, config: Config | None) -> list[str]:
    """Which files of a finished run are not what the run wrote."""
    problems = []
    for name, checksum in about.outcome.items() if about else ():
        try:
            if atomic_io.digest(read_bytes(folder / name, OUTCOME[name], inside=folder)) == checksum:
                continue
            problem = f"{folder / name} is not what the run wrote (its checksum is wrong)"
        except RunError as error:
            problem = str(error)
        problems.append(f"{problem}; `{resume_hint(folder, config)}` makes it again")
    return problems


def load_metrics(folder: Path) -> Metrics:
    """Read the table of metrics; a last line that is still being written is left out."""
    path = folder / METRICS
    try:
        text = read_text(path, "table of metrics", inside=folder, growing=True)
    except MissingFileError:
        return Metrics({})
    try:
        return from_csv(text[: text.rfind("\n") + 1])
    except (ValueError, csv.Error) as error:
        raise RunError(f"{path} is damaged: {error}") from None


def load_certificate(folder: Path) -> Certificate:
    """Read the certificate; that it is what the run wrote is for `damaged_outcome` to say."""
    path = folder / CERTIFICATE
    text = read_text(path, "certificate", inside=folder)
    return Certificate.from_json(text, origin=str(path), strict=False)


def ledger_of(folder: Path, *, work: str = "", held: bool = False) -> Ledger:
    """The looks at a run's policies; a run without its file has taken at least those that its certificate lists.

    Args:
        folder: of the run.
        work: who looks: a run that goes on repeats the looks that it began itself.
        held: the folder's lock is held already.
    """
    listed = []
    if not held and not (folder / LOOKS).exists() and load_about(folder).ledger:
        raise RunError(
            f"{folder / LOOKS} is gone: which looks were taken at this run is not known any more; "
            "psyco verify --ignore-looks does not count them, and says so in the certificate"
        )
    if not (folder / LOOKS).exists() and (folder / CERTIFICATE).exists():
        listed = entries_of(load_certificate(folder), work)
    return Ledger(
        listed, stream=Stream.CERTIFY, work=work, path=folder / LOOKS,
        guard=nullcontext if held else partial(lock, folder),
    )  # fmt: skip


def load_episodes(run: Run) -> dict[str, Any] | None:
    """The episodes that the run kept, for pages to play; None if there are none or if they can't be read."""
    try:
        data = read_bytes(run.folder / EPISODES, "sample episodes", inside=run.folder)
        content = from_json(data, str(run.folder / EPISODES))
    except RunError:
        return None
    return content if isinstance(content, dict) else None


def _policy_file(run: Run) -> Path:
    path = run.folder / POLICY
    if not os.path.lexists(path):
        hint = resume_hint(run.folder, run.config)
        raise RunError(f"{run.folder} holds no policy yet: the run has not finished; go on with: {hint}")
    if leads_out(path, run.folder):
        raise RunError(f"{path} is a link out of the run's folder; put a copy of the file in its place")
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
