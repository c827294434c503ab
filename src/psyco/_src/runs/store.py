"""The run folder: the files of a run, and how to read them.

    config.toml          the configuration: exact, complete, reusable
    requirement.props    the requirement as text
    start.safetensors    the policy that learning starts from, if there is one
    baseline/            a policy that the result is compared with, if one is asked for, or the run that learns it
    metrics.csv          one row per generation, appended during the run
    checkpoints/         states of training, the newest few
    policy.safetensors   the resulting policy,
    certificates/        every certificate of a look at it: 0001.json is that of the first look in looks.json
    certificate.json     the newest of them
    looks.json           every test of a policy of this run; a later look uses fresh episodes and the next error share
    episodes.json        sample episodes of the policy, for the page
    run.json             time, package versions, machine; at the end the checksums of the results
    run.log              the log

Reading never fails on a damaged folder: the damage is listed in `Run.problems`. Reading makes no environment, imports
nothing that a file names, and opens no connection.
"""

from __future__ import annotations

import csv
import dataclasses
import json
import logging
import os
import platform
import re
import shlex
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from html import escape
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import msgspec
import numpy as np

from psyco._src.core import files
from psyco._src.core.codec import decode, encode
from psyco._src.core.errors import MissingFileError, PsycoError, RunError
from psyco._src.core.files import from_json, leads_outside, read_bytes, read_text
from psyco._src.core.wording import plural
from psyco._src.envs.registry import proposed_trust
from psyco._src.learners.metrics import Metrics, from_csv
from psyco._src.policies.image_network import ImageNetwork
from psyco._src.policies.joint_network import JointNetwork
from psyco._src.policies.network import Network
from psyco._src.policies.serialization import Policy, load_policy
from psyco._src.rollout.episodes import Stream
from psyco._src.runs.baselines import Baselines
from psyco._src.runs.checkpoint import FOLDER as CHECKPOINTS
from psyco._src.runs.config import Config, is_sealed, read_config
from psyco._src.runs.lock import is_locked, lock
from psyco._src.verification.base import Verdict
from psyco._src.verification.certificate import Certificate
from psyco._src.verification.ledger import Ledger, certificate_entries

logger = logging.getLogger(__name__)

T = TypeVar("T")

CONFIG, REQUIREMENT, METRICS = "config.toml", "requirement.props", "metrics.csv"
POLICY, CERTIFICATE, EPISODES = "policy.safetensors", "certificate.json", "episodes.json"
RUN_INFO, LOG, LOOKS = "run.json", "run.log", "looks.json"
START, BASELINE = "start.safetensors", "baseline"
CERTIFICATES = "certificates"  # folder
CERTIFICATE_NAME = re.compile(rf"{CERTIFICATES}/[0-9]{{4,12}}\.json")
# Caches of episodes: of the current generation, and of candidates during selection and certification.
GENERATION, PLAYED = "generation.safetensors", "played.safetensors"
# The results of a run besides its certificates, with the kind of each file.
OUTCOME = {
    POLICY: "policy",
    EPISODES: "sample episodes",
    METRICS: "table of metrics",
}
FILES = (
    *(CONFIG, REQUIREMENT, START, METRICS, POLICY, CERTIFICATE),
    *(EPISODES, RUN_INFO, LOG, LOOKS, GENERATION, PLAYED, "progress.json"),
)
# Files that other commands write.
DERIVED = ("report.html", "counterexamples.html", *(f"trajectory.{kind}" for kind in ("png", "gif", "mp4", "webm")))

FORMAT = "psyco-run-1"
MAX_TIME = 2**37  # seconds since 1970; later dates cannot be printed
LOOK_PATIENCE = 5.0  # seconds that one look waits for the entry of another
ABSENT = "–"  # instead of a value that a configuration does not have

Seconds = Annotated[float, msgspec.Meta(ge=0, lt=MAX_TIME)]


# ---- run.json -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RunInfo:
    """The content of run.json."""

    created: Annotated[int, msgspec.Meta(ge=0, lt=MAX_TIME)]  # start of the run, in seconds since 1970
    versions: dict[str, str]  # of packages
    machine: dict[str, Any]
    outcome: dict[str, str]  # SHA-256 of each result of learning and its certificate; empty before
    remark: str = ""  # why a finished run has no certificate
    baselines: Baselines | None = None  # the certified policy beside random actions, doing nothing, ...
    certified_generation: int | None = None  # number of generations after which the certified policy was kept
    # With its normalization, so that a resumed run need not compute it again.
    network: Network | JointNetwork | ImageNetwork | None = None
    ledger: bool = False  # looks.json exists, and must not be missing
    learner: str = ""  # the automatically chosen learner and the reason for it
    # Duration of "learning", and of "certifying" together with the selection.
    seconds: dict[str, Seconds] = field(default_factory=dict)

    def save(self, folder: Path) -> None:
        """Write run.json."""
        content = {"format": FORMAT, **encode(self)}
        content["sha256"] = files.digest(_canonical(content))
        files.write(folder / RUN_INFO, (json.dumps(content, indent=2) + "\n").encode())


def load_run_info(folder: Path) -> RunInfo:
    """Read run.json; raise RunError if it is damaged."""
    path = folder / RUN_INFO
    content = from_json(read_bytes(path, "description of a run", inside=folder), str(path))
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise RunError(f"{path} is damaged, or was written by another version of PSyCo: its format is not {FORMAT}")
    checksum = content.pop("sha256", None)
    if checksum != files.digest(_canonical(content)):
        raise RunError(f"{path} is damaged: its checksum is wrong")
    del content["format"]
    info = decode(content, RunInfo, str(path))
    # Anyone can compute a checksum, so the names must be checked too.
    if unknown := {name for name in info.outcome.keys() - OUTCOME if not CERTIFICATE_NAME.fullmatch(name)}:
        raise RunError(f"{path} is damaged: {sorted(unknown)[0]!r} is not a result of a run")
    return info


def machine() -> dict[str, Any]:
    """Return processor, system and devices; nothing that identifies the owner."""
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


# ---- reading a run ------------------------------------------------------------------------------------------

State = Literal["finished", "running", "stopped", "damaged"]


@dataclass(frozen=True, repr=False)
class Run:
    """A run as found in its folder.

    `state` is "finished", "running", "stopped" or "damaged"; `certificate` is the newest one of the policy, None before
    the run has finished, and `problems` lists damage to its files.
    """

    folder: Path
    config: Config | None
    info: RunInfo | None
    metrics: Metrics
    certificate: Certificate | None
    state: State
    problems: tuple[str, ...]

    def __repr__(self) -> str:
        verdict = f", {self.certificate.verdict.name}" if self.certificate else ""
        domain = self.config.domain if self.config else "unknown domain"
        return f"<Run {self.folder}: {domain}, {self.state}{verdict}, {plural(self.episodes, 'episode')}>"

    def _repr_html_(self) -> str:
        from psyco._src.verification.certificate_html import certificate_html

        return f"<p>{escape(repr(self)[1:-1])}</p>" + (certificate_html(self.certificate) if self.certificate else "")

    @property
    def remark(self) -> str:
        """Why the run has no certificate, or that its policy is no better than a baseline, and what would help."""
        if self.certificate is not None and self.certificate.verdict is Verdict.SATISFIED:
            return self.baselines.remark(self.certificate) if self.baselines else ""
        return self.info.remark if self.info else ""

    @property
    def baselines(self) -> Baselines | None:
        """The certified policy beside random actions, doing nothing and the untrained network; None: not known."""
        return self.info.baselines if self.info else None

    @property
    def policy(self) -> Policy:
        """The resulting policy."""
        path = self.folder / POLICY
        if not os.path.lexists(path):
            hint = resume_command(self.folder, self.config)
            raise RunError(f"{self.folder} holds no policy yet: the run has not finished; resume it with: {hint}")
        if leads_outside(path, self.folder):
            raise RunError(f"{path} is a link out of the run's folder; put a copy of the file in its place")
        for problem in self.problems:
            if POLICY in problem:
                raise RunError(problem)
        return load_policy(path)

    @property
    def episodes(self) -> int:
        """Training episodes done."""
        return int(self.metrics["episodes"][-1]) if self.metrics.rows else 0

    @property
    def steps(self) -> int:
        """Training steps done."""
        if not self.metrics.rows:
            return 0
        per_generation = np.diff(self.metrics["episodes"], prepend=0)
        return round(float(np.sum(per_generation * self.metrics["length"])))

    @property
    def progress(self) -> float:
        """The share of the budget that is spent, 0 to 1; a run may finish before that."""
        if self.state == "finished":
            return 1.0
        if self.config is None:
            return 0.0
        settings = self.config.settings
        done = self.steps / settings.steps if settings.steps else self.episodes / settings.episodes
        return min(1.0, done)


def is_run(folder: Path) -> bool:
    """Whether a folder looks like a run folder."""
    return os.path.lexists(folder / CONFIG) or os.path.isdir(folder / CHECKPOINTS)


def refuse_file_of_run(path: Path) -> None:
    """Raise RunError if another command would overwrite a file that a run has written."""
    path = Path(path).absolute()
    inside = path.parent.name in (CERTIFICATES, CHECKPOINTS, BASELINE) and is_run(path.parent.parent)
    if inside or (path.name in FILES and is_run(path.parent)):
        raise RunError(f"{path} is a file of the run in this folder; choose another name")


def find_runs(folder: Path) -> list[Path]:
    """Return the run folders in a folder, or the folder itself if it is one."""
    if is_run(folder):
        return [folder]
    try:
        return sorted(path for path in folder.iterdir() if path.is_dir() and is_run(path))
    except FileNotFoundError:
        raise RunError(f"there is no folder {folder}") from None
    except (OSError, ValueError) as error:  # ValueError: a name with a NUL in it
        raise RunError(f"cannot look into {folder}: {getattr(error, 'strerror', None) or error}") from None


def read_run(folder: Path, *, config: Config | None = None) -> Run:
    """Read a run, also one that is still running or that is damaged.

    Args:
        folder: the run folder.
        config: its configuration, if this process has written it; None: read it from the folder.
    """
    if not is_run(folder):
        raise RunError(f"{folder} is not a run folder: it has no {CONFIG}")
    problems: list[str] = []

    def attempt(load: Callable[[Path], T], default: T) -> T:
        try:
            return load(folder)
        except RunError as error:
            problems.append(str(error))
            return default

    running = is_locked(folder)
    if config is None:
        config = attempt(partial(_load_config, problems=problems), None)
    info = attempt(load_run_info, None)
    metrics = attempt(load_metrics, Metrics({}))
    # Without an outcome the certificate is that of a shorter run, or not sealed yet: `psyco resume` makes it again.
    certificate = attempt(_load_certificate, None)
    if info is not None and not info.outcome:
        certificate = None
    finished = info is not None and bool(info.outcome) and not running
    if info is not None and finished:
        problems += find_damage(folder, info, config)
        with suppress(RunError):  # found already
            data = newest_certificate(folder, info, problems)
            certificate = Certificate.from_json(data.decode(errors="replace"), strict=False)
            problems += _lost_certificates(folder, data)
    state: State = "running" if running else "damaged" if problems else "finished" if finished else "stopped"
    return Run(folder, config, info, metrics, certificate, state, tuple(dict.fromkeys(problems)))


def _load_config(folder: Path, *, problems: list[str]) -> Config | None:
    text = read_text(folder / CONFIG, "configuration", inside=folder)
    if not is_sealed(text):
        problems.append(f"{folder / CONFIG} was changed or damaged after the run began")
    return read_config(text, str(folder / CONFIG))


def _load_certificate(folder: Path) -> Certificate | None:
    try:
        return load_certificate(folder)
    except MissingFileError:
        return None


def find_damage(folder: Path, info: RunInfo | None, config: Config | None) -> list[str]:
    """Return a message for each result of a finished run whose file has changed since."""
    problems = []
    for name, checksum in info.outcome.items() if info else ():
        try:
            kind = OUTCOME.get(name, "certificate")
            if files.digest(read_bytes(folder / name, kind, inside=folder)) == checksum:
                continue
            problem = f"{folder / name} is not what the run wrote (its checksum is wrong)"
        except RunError as error:
            problem = str(error)
        problems.append(f"{problem}; `{resume_command(folder, config)}` makes it again")
    if info is not None and info.outcome and not problems:
        try:
            if read_bytes(folder / CERTIFICATE, "certificate", inside=folder) != newest_certificate(folder, info):
                raise RunError(f"{folder / CERTIFICATE} is not the newest certificate of the run")
        except RunError as error:
            problems.append(f"{error}; `{resume_command(folder, config)}` writes it again")
    return problems


# ---- certificates -------------------------------------------------------------------------------------------


def certificate_name(certificate: Certificate) -> str:
    """Return the name of a certificate's file: the number of its look in the ledger, whose looks have a block each."""
    return f"{CERTIFICATES}/{(certificate.seed_block or 0) + 1:04}.json"


def newest_certificate(folder: Path, info: RunInfo, problems: list[str] | None = None) -> bytes:
    """Return the file of the newest certificate of the run's policy: that of learning, or of a later look.

    Certificates of another policy (before the run was made longer), requirement or domain do not count.

    Args:
        folder: the run folder.
        info: of the finished run; it names the certificate of learning.
        problems: receives a message for each later certificate that is damaged.
    """
    own = max(filter(CERTIFICATE_NAME.fullmatch, info.outcome), default=f"{CERTIFICATES}/0001.json")
    data = read_bytes(folder / own, "certificate", inside=folder)
    for name in reversed(_certificate_names(folder)):
        if name == own:
            break
        try:
            later = read_bytes(folder / name, "certificate", inside=folder)
            if _claim(later, folder / name) == _claim(data, folder / own):
                return later
        except RunError as error:
            if problems is not None:
                problems.append(f"{error}; remove it: it cannot be made again, but `psyco verify` takes a further look")
    return data


def _certificate_names(folder: Path) -> list[str]:
    """Return the names of the certificates of a run folder, oldest first."""
    try:
        found = [f"{CERTIFICATES}/{path.name}" for path in (folder / CERTIFICATES).iterdir()]
    except OSError as error:
        raise RunError(f"cannot look into {folder / CERTIFICATES}: {error.strerror}") from None
    return sorted(filter(CERTIFICATE_NAME.fullmatch, found), key=lambda name: int(Path(name).stem))


def _claim(data: bytes, path: Path) -> tuple[str | None, str]:
    """Return the policy of a certificate, and what it states: looks at equal statements share one permitted error."""
    found = Certificate.from_json(data.decode(errors="replace"), origin=str(path))
    if (name := Path(certificate_name(found)).name) != path.name:
        raise RunError(f"{path} is the certificate of another look, which belongs into {name}")
    try:
        return found.policy, certificate_entries(found)[0].target.statement
    except PsycoError as error:
        raise RunError(f"{path} is damaged: {error}") from None


def _lost_certificates(folder: Path, newest: bytes) -> list[str]:
    """Return a message for each finished look after the newest certificate: its own is gone, and would count."""
    found = Certificate.from_json(newest.decode(errors="replace"), strict=False)
    name = certificate_name(found)
    ledger = open_ledger(folder, held=True)
    ledger.load()
    later = [
        (block, entry)
        for entry in ledger.entries
        if (block := (entry.look.seed_block or 0) + 1) > int(Path(name).stem)
        and entry.look.policy == found.policy
        and entry.look.episodes
    ]
    statement = _claim(newest, folder / name)[1] if later else ""
    return [
        f"look {block} at this policy ended {entry.look.verdict.name}, and its certificate "
        f"{CERTIFICATES}/{block:04}.json is gone; `psyco verify` takes a further look"
        for block, entry in later
        if entry.target.statement == statement
    ]


def write_certificate(folder: Path, certificate: Certificate) -> str:
    """Write a certificate to its own file in a run folder, whose lock the caller holds; return the file's name."""
    name, place = certificate_name(certificate), folder / CERTIFICATES
    if leads_outside(place, folder):
        raise RunError(f"{place} is a link out of {folder}; nothing is written there. Remove it first")
    try:
        place.mkdir(exist_ok=True)
    except OSError as error:
        raise RunError(f"cannot make the folder {place}: {error.strerror}") from None
    files.write(folder / name, certificate.to_json().encode())
    return name


def write_newest_certificate(folder: Path, info: RunInfo) -> None:
    """Write the newest certificate to `certificate.json`; the caller holds the lock."""
    files.write(folder / CERTIFICATE, newest_certificate(folder, info))


def keep_certificate(folder: Path, certificate: Certificate) -> None:
    """Add the certificate of a further look to a run.

    A failure is logged only, since the caller has the certificate.
    """
    try:
        with lock(folder, patience=LOOK_PATIENCE):
            info = load_run_info(folder)
            if info.outcome.get(POLICY) != certificate.policy:
                raise RunError("it is not about the policy with which the run ended")
            name = write_certificate(folder, certificate)
            write_newest_certificate(folder, info)
            logger.info("the certificate is kept as %s", folder / name)
    except RunError as error:
        logger.warning("the certificate is not kept in %s: %s", folder, error)


def load_metrics(folder: Path) -> Metrics:
    """Read the metrics table; a last line that is still being written is left out."""
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
    """Read the certificate; `find_damage` checks that the run wrote it."""
    path = folder / CERTIFICATE
    text = read_text(path, "certificate", inside=folder)
    return Certificate.from_json(text, origin=str(path), strict=False)


def load_episodes(run: Run) -> dict[str, Any] | None:
    """Read the sample episodes of a run; None if there are none or if they can't be read."""
    try:
        data = read_bytes(run.folder / EPISODES, "sample episodes", inside=run.folder)
        content = from_json(data, str(run.folder / EPISODES))
    except RunError:
        return None
    return content if isinstance(content, dict) else None


def open_ledger(folder: Path, *, work: str = "", held: bool = False, ignored: bool = False) -> Ledger:
    """Return the ledger of the looks at a run's policies; without its file, with the looks of the certificate.

    Args:
        folder: the run folder.
        work: name of the work that looks; a resumed run repeats the looks that it began itself.
        held: the caller holds the lock of the folder.
        ignored: the caller does not count the looks, so the file may be gone or wrong.
    """
    if ignored:
        return Ledger()
    missing, listed = not (folder / LOOKS).exists(), []
    if missing and not held and load_run_info(folder).ledger:
        raise RunError(
            f"{folder / LOOKS} is gone: which looks were taken at this run is not known any more; "
            "psyco verify --ignore-looks does not count them, and says so in the certificate"
        )
    if missing and (folder / CERTIFICATE).exists():
        listed = certificate_entries(load_certificate(folder), work)
    if not missing and not held:
        check_ledger(folder)
    return Ledger(
        listed,
        stream=Stream.CERTIFY,
        owner=work,
        path=folder / LOOKS,
        guard=nullcontext if held else partial(lock, folder, patience=LOOK_PATIENCE),
    )


def check_ledger(folder: Path) -> None:
    """Raise RunError if the ledger is damaged, or lacks the look of a certificate: an older ledger was put back."""
    ledger = Ledger(path=folder / LOOKS)
    ledger.load()
    entered = {f"{CERTIFICATES}/{(entry.look.seed_block or 0) + 1:04}.json" for entry in ledger.entries}
    if (folder / CERTIFICATES).is_dir() and (lost := set(_certificate_names(folder)) - entered):
        raise RunError(
            f"{folder / LOOKS} does not have the look of {min(lost)}: an older file was put back, and which looks were "
            "taken at this run is not known any more; psyco verify --ignore-looks does not count them, and says so in "
            "the certificate"
        )


def resume_command(folder: Path, config: Config | None, *options: str) -> str:
    """Return the shell command that resumes a run."""
    named = proposed_trust(config.description) if config else []
    trust = (f"--trust {shlex.quote(name)}" for name in named)
    return " ".join(["psyco resume", shlex.quote(str(folder)), *options, *trust])


# ---- comparing configurations -------------------------------------------------------------------------------


def flat_config(config: Config) -> dict[str, Any]:
    """Return a configuration as one level of dotted keys: `learner.learning_rate` -> 0.01."""
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
    """Return the keys on which runs differ, with the value of each run; None if a configuration can't be read."""
    configs = [flat_config(run.config) for run in runs if run.config is not None]
    if len(configs) < len(runs):
        return None
    keys = dict.fromkeys(key for config in configs for key in config)
    values = {key: [config.get(key, ABSENT) for config in configs] for key in keys}
    return {key: row for key, row in values.items() if any(value != row[0] for value in row)}
