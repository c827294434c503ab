"""Start a run, resume it, execute it. The results are the same bytes, however often it was interrupted.

Training depends on the configuration and the numbers of the generations alone, so resuming from any earlier state gives
the same result. The files must only be consistent: a checkpoint names the part of metrics.csv that belongs to it, and
later rows are dropped when a run is resumed from there.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import re
import shutil
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from psyco._src.core import files
from psyco._src.core.errors import RunError
from psyco._src.core.files import check_folder, read_bytes, read_text
from psyco._src.core.provenance import package_versions
from psyco._src.envs.base import Domain
from psyco._src.envs.registry import TRUST_NOTHING, DomainDescription, describe, make_from_description
from psyco._src.logic.parser import parse
from psyco._src.policies.network import Network
from psyco._src.policies.serialization import Policy, load_policy
from psyco._src.rollout.execution import IN_PROCESS, Execution
from psyco._src.runs.checkpoint import FOLDER as CHECKPOINTS
from psyco._src.runs.checkpoint import Checkpoint, checkpoint_files, load_checkpoint
from psyco._src.runs.config import Config, is_sealed, read_config
from psyco._src.runs.lock import LOCK, lock
from psyco._src.runs.problem import Problem, prepare
from psyco._src.runs.settings import Settings
from psyco._src.runs.store import (
    BASELINE,
    CERTIFICATES,
    CONFIG,
    DERIVED,
    FILES,
    LOG,
    METRICS,
    REQUIREMENT,
    RUN_INFO,
    START,
    RunInfo,
    check_ledger,
    find_damage,
    flat_config,
    is_run,
    load_run_info,
    machine,
    read_run,
    resume_command,
    write_newest_certificate,
)
from psyco._src.runs.tracking import RunName, permitted_trackers
from psyco._src.runs.train import TrainingState, initial_state
from psyco._src.runs.warm_start import describe_initial_policy, policy_reference

logger = logging.getLogger(__name__)

WANDB = "wandb"  # folder of a tracker, whose logs are links into its cache
STEPS_TENSOR = ".state.steps"  # tensor of a checkpoint with the number of training steps


@dataclass(frozen=True)
class RunSession:
    """The work of one process on a run; it holds the lock of the folder."""

    folder: Path
    config: Config
    problem: Problem
    info: RunInfo
    start: TrainingState | None = None  # state to resume from; None: the beginning
    metrics_size: int = 0  # bytes of metrics.csv that belong to `start`
    trackers: tuple[str, ...] = ()
    code: tuple[str, ...] = ()  # hashes of the environment's code in this run, the newest last

    @property
    def work(self) -> str:
        """Name of this run in the ledger: a resumed run repeats its own looks, a longer run takes further ones."""
        return f"run of {_budget(self.config.settings)} {self.config.settings.unit}"

    @property
    def issued(self) -> str:
        """Time of the certificate: the start of the run, so that it does not depend on interruptions."""
        return datetime.fromtimestamp(self.info.created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

    @property
    def tracked_name(self) -> RunName:
        """Name and configuration of the run for trackers."""
        identity = files.digest(f"{self.folder.resolve()} {self.info.created}".encode())
        return RunName(self.folder, identity, flat_config(self.config))


def build_problem(
    config: Config,
    *,
    domain: Domain | None = None,
    execution: Execution = IN_PROCESS,
    trust: Collection[str] = TRUST_NOTHING,
    network: Network | None = None,
    initial_policy: Policy | None = None,
) -> Problem:
    """Return the problem that a configuration describes, checked.

    Args:
        config: the configuration.
        domain: its domain, if it exists already; None: make it.
        execution: where episodes are computed.
        trust: code that the configuration may name.
        network: network of a resumed run.
        initial_policy: the policy that learning starts from, if the configuration names one.
    """
    if domain is None:
        domain = make_from_description(config.description, trust)
    elif _canonical(describe(domain)) != _canonical(config.description):
        raise RunError(f"this domain is not that of the run: {describe(domain)} instead of {config.description}")
    requirement = parse(config.requirement)
    return prepare(domain, requirement, config.settings, execution, network=network, initial_policy=initial_policy)


def _canonical(description: DomainDescription) -> str:
    return json.dumps(description, sort_keys=True, default=str)


# ---- start --------------------------------------------------------------------------------------------------


@contextmanager
def start_run(folder: Path, config: Config, problem: Problem, *, overwrite: bool = False) -> Iterator[RunSession]:
    """Write the configuration of a run into its folder, before it runs; refuse a folder that holds a run already."""
    config = config.complete(problem)
    text = config.to_toml()
    check_folder_free(folder, overwrite)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"cannot make the folder {folder}: {error.strerror}") from None
    with lock(folder):
        check_folder_free(folder, overwrite)  # another process may have been faster
        for name in (CHECKPOINTS, CERTIFICATES, BASELINE, "tensorboard", WANDB):
            shutil.rmtree(folder / name, ignore_errors=True)
        last = RUN_INFO, CONFIG  # by them a folder is recognised as a run, should a kill come in between
        for name in (*sorted({*FILES, *DERIVED}.difference(last)), *last):
            (folder / name).unlink(missing_ok=True)
        files.remove_leftovers(folder, exclude=DERIVED)
        check_folder(folder)
        if problem.initial_policy is not None:
            files.write(folder / START, problem.initial_policy.to_bytes())
        files.write(folder / CONFIG, text.encode())
        files.write(folder / REQUIREMENT, _requirement_file(config))
        info = RunInfo(
            _now(), package_versions(), machine(), {}, network=problem.network, learner=problem.learner_choice
        )
        with _log_to(folder):
            logger.info("started: %s, %s, seed %d", config.domain, config.settings.budget, config.settings.seed)
            if problem.learner_choice:
                logger.info("%s", problem.learner_choice)
            if problem.initial_policy is not None:
                logger.info("learning starts from %s", describe_initial_policy(problem.initial_policy))
            code = _code_history(folder, problem)
            yield RunSession(folder, config, problem, info, trackers=config.tracking, code=code)


def default_folder(domain: str, parent: Path = Path("runs")) -> Path:
    """Return a readable name that is free: runs/particle-dance-1, runs/particle-dance-2, ..."""
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", domain).strip("-.") or "run"
    taken = {path.name for path in parent.glob(f"{stem}-*")} if parent.is_dir() else set()
    number = 1
    while f"{stem}-{number}" in taken:
        number += 1
    return parent / f"{stem}-{number}"


def check_folder_free(folder: Path, overwrite: bool) -> None:
    """Raise an error if a folder holds a run already, or other files.

    With `overwrite` a run is no error if PSyCo has certainly written it, and nothing in the folder leads out of it.
    """
    if not folder.exists():
        return
    if not folder.is_dir():
        raise RunError(f"{folder} is a file; give --out the name of a folder")
    if is_run(folder) and not overwrite:
        raise RunError(
            f"{folder} holds a run already: resume it ({resume_command(folder, read_run(folder).config)}), "
            "choose another --out, or replace it with --overwrite"
        )
    check_folder(folder, exclude=(WANDB,))
    names = {path.name for path in folder.iterdir() if files.target_of(path.name) is None}
    if is_run(folder):
        if not _is_own_run(folder, names):
            raise RunError(
                f"{folder} is not overwritten: no intact file shows that PSyCo wrote it (neither {RUN_INFO} nor a "
                "checkpoint); choose another --out, or delete the folder yourself"
            )
    # A run that was killed before its configuration was written leaves these files.
    elif unknown := names - {LOCK, START}:
        raise RunError(
            f"{folder} is not empty and not a run ({', '.join(sorted(unknown)[:3])}, ...); choose another --out"
        )


def _is_own_run(folder: Path, names: Collection[str]) -> bool:
    """Return whether PSyCo has certainly written a run, so that its files may be deleted.

    Any program may have a config.toml, and users copy ours. So an intact run.json or an intact checkpoint is needed, or
    an intact configuration beside which there is nothing but the files with which a run starts.
    """
    with suppress(RunError):
        load_run_info(folder)
        return True
    if any(_intact_checkpoints(folder)):
        return True
    with suppress(RunError):
        starting = {LOCK, LOG, START, CONFIG, REQUIREMENT, BASELINE}
        return starting.issuperset(names) and is_sealed(read_text(folder / CONFIG, "configuration", inside=folder))
    return False


# ---- resume -------------------------------------------------------------------------------------------------


@contextmanager
def resume_run(
    folder: Path,
    *,
    episodes: str | None = None,
    steps: str | None = None,
    domain: Domain | None = None,
    execution: Execution = IN_PROCESS,
    trust: Collection[str] = TRUST_NOTHING,
    track: Collection[str] = (),
    allow_changed_code: bool = False,
) -> Iterator[RunSession | None]:
    """Resume a run from its newest intact checkpoint; yield None if it has finished.

    Args:
        folder: the run folder.
        episodes: a new total, `"100000"`, or an addition, `"+40000"`.
        steps: the same for a run whose budget is in steps.
        domain: domain of the run, if it exists already.
        execution: where episodes are computed.
        trust: code that the run may name.
        track: trackers beyond this machine that the run may continue to use.
        allow_changed_code: continue although the code of the environment has changed; the certificate notes it.
    """
    if not is_run(folder):
        raise RunError(f"{folder} is not a run folder: it has no {CONFIG}")
    check_folder(folder, exclude=(WANDB,))
    with lock(folder), _log_to(folder):
        for place in (folder, folder / CHECKPOINTS, folder / CERTIFICATES):
            files.remove_leftovers(place, exclude=DERIVED)
        found = list(_intact_checkpoints(folder))
        config = _find_config(folder, found)
        info = _find_run_info(folder, found)
        settings = _extended(config.settings, {"episodes": episodes, "steps": steps})
        longer = settings != config.settings
        damage = find_damage(folder, info, config)
        for message in damage:
            logger.warning("%s", message)
        if damage:
            with suppress(RunError):  # `certificate.json` is a copy
                write_newest_certificate(folder, info)
            damage = find_damage(folder, info, config)
        if info.outcome and not longer and not damage:
            yield None
            return
        done = _budget(config.settings) if info.outcome else 0
        config = dataclasses.replace(config, settings=settings)
        problem = build_problem(
            config,
            domain=domain,
            execution=execution,
            trust=trust,
            network=info.network,
            initial_policy=load_initial_policy(folder, config),
        )
        done = max(done, _spent(found, problem))
        if longer and _budget(settings) < done:
            raise RunError(
                f"{folder} has {done:,} {settings.unit} already; give a larger total than that, "
                f"or +{_budget(settings)} to add that many"
            )
        if info.outcome and longer:
            logger.info("this run was certified before: its new certificate is a further look, with fresh episodes")
        start, size, learned_with = _choose_checkpoint(folder, config, problem, found)
        code = _code_history(folder, problem, learned_with, allow_changed_code=allow_changed_code)
        check_ledger(folder)  # before learning, not after
        info = dataclasses.replace(info, outcome={}, remark="", baselines=None, network=problem.network)
        info.save(folder)
        _repair(folder / CONFIG, config.to_toml().encode())
        _repair(folder / REQUIREMENT, _requirement_file(config))
        logger.info(
            "resumed after %d%s generations",
            start.generation if start else 0,
            f", with {settings.budget} in all," if settings.steps else f" of {problem.generations}",
        )
        trackers = permitted_trackers(config.tracking, track)
        yield RunSession(folder, config, problem, info, start, size, trackers, code)


def _intact_checkpoints(folder: Path) -> Iterator[Checkpoint]:
    """Yield the intact checkpoints, newest first; log a warning for a damaged one."""
    for path in checkpoint_files(folder):
        try:
            yield load_checkpoint(path)
        except RunError as error:
            logger.warning("checkpoint %s is damaged: %s; an older one will do", path, error)


def _find_config(folder: Path, found: list[Checkpoint]) -> Config:
    """Return the configuration with which the run began: from its file, or from a copy in a checkpoint."""
    path = folder / CONFIG
    try:
        text = read_text(path, "configuration", inside=folder)
    except RunError:
        text = ""
    if is_sealed(text):
        return read_config(text, str(path))
    if not found:
        raise RunError(
            f"{path} was changed or damaged after the run began, and no checkpoint holds a copy of it; "
            "start another run (psyco synthesize --config takes a file that you have repaired)"
        )
    logger.warning(
        "%s was changed or damaged after the run began; going on with the copy that the checkpoint holds. "
        "For other settings start another run: psyco synthesize --config FILE",
        path,
    )
    return read_config(found[0].info.config, f"the copy of {path}")


def _find_run_info(folder: Path, found: list[Checkpoint]) -> RunInfo:
    """Return the content of run.json; if it is damaged, the values known without it."""
    now = package_versions()
    try:
        info = load_run_info(folder)
    except RunError as error:
        logger.warning("%s; writing it anew", error)
        return RunInfo(found[0].info.created if found else _now(), now, machine(), {})
    for name, version in info.versions.items():
        if now.get(name) != version:
            logger.warning(
                "this run began with %s %s, here is %s: the result may differ in its last digits",
                name, version, now.get(name, "none"),
            )  # fmt: skip
    return info


def load_initial_policy(folder: Path, config: Config) -> Policy | None:
    """Read the policy that a run started from; None if it started from random parameters."""
    reference = config.settings.start_from
    if not reference:
        return None
    try:
        policy = load_policy(folder / START)
    except RunError as error:
        raise RunError(f"{error}; the run started from the policy {reference}: put its file back") from None
    if policy_reference(policy) != reference:
        raise RunError(
            f"{folder / START} was changed or damaged: it holds the policy {policy_reference(policy)}, the run started "
            f"from {reference}; put its file back"
        )
    return policy


def _budget(settings: Settings) -> int:
    return settings.steps or settings.episodes


def _extended(settings: Settings, totals: Mapping[str, str | None]) -> Settings:
    """Return the settings with a new total, or with an addition, in the unit with which the run began."""
    for unit, text in totals.items():
        if text is None:
            continue
        if unit != settings.unit:
            raise RunError(f"the budget of this run is in {settings.unit}: give --{settings.unit}, not --{unit}")
        number = re.fullmatch(r"\+?([0-9]{1,15}|[0-9.]{1,6}[eE]\+?[0-9]{1,2})", text)
        if not number or not float(number[1]).is_integer():
            raise RunError(
                f"--{unit} takes a total such as 100000 or 1e5, or an addition such as +40000, got {text[:80]!r}"
            )
        total = int(float(number[1])) + (_budget(settings) if text.startswith("+") else 0)
        changed: dict[str, Any] = {unit: total, "stop_after": 0}
        settings = dataclasses.replace(settings, **changed)
    return settings


def _spent(found: list[Checkpoint], problem: Problem) -> int:
    """Return the part of the budget that the checkpoints show as spent."""
    if problem.settings.steps:
        return max((int(c.tensors.get(STEPS_TENSOR, 0)) for c in found), default=0)
    return max((c.info.generation for c in found), default=0) * problem.learner.episodes_per_generation


def _choose_checkpoint(
    folder: Path, config: Config, problem: Problem, found: list[Checkpoint]
) -> tuple[TrainingState | None, int, tuple[str, ...]]:
    """Return the newest state that fits configuration and metrics.csv, with its bytes of metrics.csv and its code."""
    template = initial_state(problem)
    try:
        metrics = read_bytes(folder / METRICS, "table of metrics", inside=folder)
    except RunError:
        metrics = b""
    for checkpoint in found:
        info = checkpoint.info
        try:
            if info.identity != config.identity:
                raise RunError("it belongs to another configuration")
            if not problem.settings.steps and info.generation > problem.generations:
                raise RunError("it lies behind the end of the run")
            if files.digest(metrics[: info.metrics_size]) != info.metrics_digest:
                raise RunError(f"{METRICS} is damaged before this point")
            restored: TrainingState = checkpoint.restore(template)
            return restored._replace(generation=info.generation), info.metrics_size, info.code
        except RunError as error:
            logger.warning("the checkpoint after %d generations can't be used: %s", info.generation, error)
    if found or metrics:
        logger.warning("no intact checkpoint: learning starts over, which gives the same result")
    return None, 0, ()


def _code_history(
    folder: Path, problem: Problem, learned_with: tuple[str, ...] = (), *, allow_changed_code: bool = False
) -> tuple[str, ...]:
    """Return the hashes of the environment's code in a run, with the present one; raise RunError if it has changed.

    Args:
        folder: the run folder.
        problem: of the run.
        learned_with: the hashes until the state from which the run is resumed.
        allow_changed_code: a change is a warning.
    """
    now = problem.code_hash
    if now is None or learned_with[-1:] == (now,):
        return learned_with
    if learned_with:
        changed = f"the code of {problem.domain.name} has changed since the last checkpoint of {folder}"
        if not allow_changed_code:
            raise RunError(
                f"{changed} (sha256 {learned_with[-1][:12]}... then, {now[:12]}... now): the rest would be learned in "
                "another environment. Put the old code back, start another run, or continue with the new code: psyco "
                "resume --allow-changed-code (in Python: allow_changed_code=True); the certificate notes it"
            )
        logger.warning("%s; learning continues with the new code", changed)
    return (*learned_with, now)


def _repair(path: Path, content: bytes) -> None:
    """Write a file unless it has this content; keep a changed one under another name."""
    try:
        found = read_bytes(path, "configuration")
        if found == content:
            return
        if path.name != CONFIG or not is_sealed(found.decode(errors="replace")):
            logger.warning("%s was changed or damaged; it is written anew", path)
            path.replace(path.with_name(f"{path.name}.damaged"))
    except (RunError, OSError):
        pass
    files.write(path, content)


def _requirement_file(config: Config) -> bytes:
    return f"{config.requirement.strip()}\n".encode()


def _now() -> int:
    """Return seconds since 1970; SOURCE_DATE_EPOCH fixes them for runs with reproducible bytes."""
    return int(os.environ.get("SOURCE_DATE_EPOCH") or time.time())


class _LogFile(logging.FileHandler):
    def handleError(self, record: logging.LogRecord) -> None:
        """Ignore a log that can't be written, on a full disk for example."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record; ignore a log that can't be opened."""
        with suppress(OSError):
            super().emit(record)


@contextmanager
def _log_to(folder: Path) -> Iterator[None]:
    """Write log records from INFO on to the run's log until the block ends."""
    handler = _LogFile(folder / LOG, delay=True, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    parent = logging.getLogger("psyco")
    handler.setLevel(logging.INFO)
    if parent.getEffectiveLevel() > logging.INFO:
        parent.setLevel(logging.INFO)
    parent.addHandler(handler)
    try:
        yield
    except Exception as error:
        logger.info("stopped by an error: %s", error)
        raise
    except KeyboardInterrupt:
        logger.info("interrupted")
        raise
    finally:
        parent.removeHandler(handler)
        handler.close()
