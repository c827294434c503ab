"""Working on a run: start it, or go on where it stopped. It ends with the same bytes either way.

Learning depends on the configuration and the generations' numbers alone, so going on from any earlier state gives
the same result. What is kept must only be consistent: a checkpoint names the part of metrics.csv that belongs to
it, and whatever was appended later is dropped when a run goes on from there.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import re
import shutil
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from psyco._src.core import atomic_io
from psyco._src.envs.base import Domain
from psyco._src.envs.registry import DomainDescription, describe, remake
from psyco._src.envs.code_hash import code_digest
from psyco._src.envs.trust import NOBODY
from psyco._src.core.errors import EpisodeError, RunError
from psyco._src.policies.serialization import Policy, load_policy
from psyco._src.policies.network import Network
from psyco._src.core.safe_io import check_folder, read_bytes, read_text
from psyco._src.rollout.execution import HERE, Execution
from psyco._src.runs import checkpoint as checkpoints
from psyco._src.runs.checkpoint import Checkpoint, checkpoint_files, load_checkpoint
from psyco._src.runs.config import Config, is_sealed, read_config
from psyco._src.runs.store import (
    CERTIFICATE,
    CONFIG,
    DERIVED,
    EPISODES,
    FILES,
    GENERATION,
    LOG,
    METRICS,
    OUTCOME,
    PLAYED,
    POLICY,
    REQUIREMENT,
    START,
    RunInfo,
    damaged_outcome,
    is_run,
    ledger_of,
    load_about,
    machine,
    read_run,
    resume_hint,
)
from psyco._src.runs.writer import CHECKPOINT_EVERY, RunWriter
from psyco._src.runs.lock import LOCK, lock
from psyco._src.runs.episode_cache import FileEpisodeCache
from psyco._src.runs.sample_trajectories import sample_episodes, sampling
from psyco._src.runs.tracking import RunName, permitted, tracked
from psyco._src.logic.parser import parse
from psyco._src.runs.train import TrainingState, Callback, beginning, learn
from psyco._src.runs.problem import Problem, prepare
from psyco._src.runs.select import CertifiedPolicy, certified, remark
from psyco._src.runs.settings import Settings
from psyco._src.runs.warm_start import named
from psyco._src.core.versions import versions

logger = logging.getLogger(__name__)

STEPS = ".state.steps"  # of a checkpoint: how many were taken so far


@dataclass(frozen=True)
class RunSession:
    """One process at work on a run; it holds the folder's lock."""

    folder: Path
    config: Config
    problem: Problem
    about: RunInfo
    start: TrainingState | None  # where to go on; None: at the beginning
    metrics_size: int = 0  # bytes of metrics.csv that belong to `start`
    trackers: tuple[str, ...] = ()


def build(
    config: Config,
    *,
    domain: Domain | None = None,
    execution: Execution = HERE,
    trust: Collection[str] = NOBODY,
    network: Network | None = None,
    start: Policy | None = None,
) -> Problem:
    """The one place where a description becomes a run: its domain is made, and everything checked.

    Args:
        config: what is to be run.
        domain: the domain, if somebody has made it already.
        execution: where episodes are made.
        trust: the code that the configuration may name.
        network: that of a run which goes on.
        start: the policy that learning starts from, if the configuration names one.
    """
    if domain is None:
        domain = remake(config.description, trust)
    elif _plain(describe(domain)) != _plain(config.description):
        raise RunError(
            f"this is another domain than the run's own: {describe(domain)} instead of {config.description}"
        )
    return prepare(
        domain, parse(config.requirement), config.settings, execution, network=network, start=start
    )


def _plain(description: DomainDescription) -> str:
    return json.dumps(description, sort_keys=True, default=str)


def default_folder(domain: str, parent: Path = Path("runs")) -> Path:
    """A readable name that is free: runs/particle-dance-1, runs/particle-dance-2, ..."""
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", domain).strip("-.") or "run"
    taken = {path.name for path in parent.glob(f"{stem}-*")} if parent.is_dir() else set()
    number = 1
    while f"{stem}-{number}" in taken:
        number += 1
    return parent / f"{stem}-{number}"


@contextmanager
def start_run(
    folder: Path, config: Config, problem: Problem, *, overwrite: bool = False
) -> Iterator[RunSession]:
    """Write down what will be run, before it runs; a folder that holds a run already is refused."""
    config = config.complete(problem)
    text = config.to_toml()
    check_free(folder, overwrite)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"cannot make the folder {folder}: {error.strerror}") from None
    with lock(folder):
        check_free(folder, overwrite)  # another process may have been faster
        for name in (*FILES, *DERIVED):
            (folder / name).unlink(missing_ok=True)
        for name in (checkpoints.FOLDER, "tensorboard", "wandb"):
            shutil.rmtree(folder / name, ignore_errors=True)
        check_folder(folder)
        if problem.start is not None:
            atomic_io.write(folder / START, problem.start.to_bytes())
        atomic_io.write(folder / CONFIG, text.encode())
        atomic_io.write(folder / REQUIREMENT, _requirement(config))
        about = RunInfo(
            _now(),
            versions(),
            machine(),
            {},
            network=dataclasses.asdict(problem.network),
            learner=problem.choice,
        )
        with _log(folder):
            logger.info(
                "started: %s, %s, seed %d", config.domain, config.settings.budget, config.settings.seed
            )
            if problem.choice:
                logger.info("%s", problem.choice)
            yield RunSession(folder, config, problem, about, None, trackers=config.tracking)


@contextmanager
def resume_run(
    folder: Path,
    *,
    episodes: str | None = None,
    steps: str | None = None,
    domain: Domain | None = None,
    execution: Execution = HERE,
    trust: Collection[str] = NOBODY,
    track: Collection[str] = (),
) -> Iterator[RunSession | None]:
    """Find the newest state that is intact and go on from there; None if the run has finished.

    Args:
        folder: of the run.
        episodes: another total, `"100000"`, or so many more, `"+40000"`.
        steps: the same for a run whose budget is in steps.
        domain: the run's domain, if somebody has made it already.
        execution: where episodes are made.
        trust: the code that the run may name.
        track: the trackers beyond this machine that the run may go on with.
    """
    if not is_run(folder):
        raise RunError(f"{folder} is not a run folder: it has no {CONFIG}")
    check_folder(folder, but=("wandb",))  # its logs are links into its cache
    with lock(folder), _log(folder):
        found = list(_intact_checkpoints(folder))
        config = _find_config(folder, found)
        about = _find_about(folder, found)
        settings = _extended(config.settings, {"episodes": episodes, "steps": steps})
        longer = settings != config.settings
        broken = damaged_outcome(folder, about, config)
        for problem_found in broken:
            logger.warning("%s", problem_found)
        if about.outcome and not longer and not broken:
            yield None
            return
        certified_before = bool(about.outcome)
        least = _amount(config.settings) if about.outcome else 0
        config = dataclasses.replace(config, settings=settings)
        problem = build(
            config, domain=domain, execution=execution, trust=trust, network=_network(about),
            start=start_policy(folder, config),
        )  # fmt: skip
        least = max(least, _done(found, problem))
        if longer and _amount(settings) < least:
            raise RunError(
                f"{folder} has {least:,} {settings.unit} already; give a larger total than that, "
                f"or +{_amount(settings)} for so many more"
            )
        if certified_before and longer:
            logger.info(
                "this run was certified before: its new certificate is a further look, with fresh episodes"
            )
        ledger_of(folder, held=True).load()  # damaged, it is better found before learning than after
        about = dataclasses.replace(about, outcome={}, remark="", network=dataclasses.asdict(problem.network))
        about.save(folder)
        for name, content in {CONFIG: config.to_toml().encode(), REQUIREMENT: _requirement(config)}.items():
            _mend(folder / name, content)
        start, size = _choose(folder, config, problem, found)
        logger.info(
            "resumed after %d%s generations",
            start.generation if start else 0,
            f", with {config.settings.budget} in all," if settings.steps else f" of {problem.generations}",
        )
        yield RunSession(folder, config, problem, about, start, size, permitted(config.tracking, track))


def execute(
    session: RunSession, *, sinks: Sequence[Callback] = (), checkpoint_every: float = CHECKPOINT_EVERY
) -> CertifiedPolicy:
    """Learn what is left to learn, verify, and keep everything; an interruption keeps where learning stood."""
    folder, problem = session.folder, session.problem
    session.about.save(folder)
    spent = dict(session.about.seconds)
    with (
        RunWriter(folder, _same(session), session.metrics_size, checkpoint_every) as keeper,
        tracked(session.trackers, _run_name(session)) as tracking,
    ):
        own = [
            Callback(keeper.rows, keeper.reached, keeper.stopped),
            Callback(rows=tracking.rows),
            sampling(folder / EPISODES),
        ]
        identity, code = session.config.identity, code_digest(problem.domain)
        with (
            _timed(session, "learning", spent),
            FileEpisodeCache(folder / GENERATION, identity, code, most=_under_way(problem)) as generation,
        ):
            follows = Callback(reached=lambda *_: generation.rest())
            at = learn(problem.remembering(generation), [*own, follows, *sinks], session.start)
        keeper.save()
        looks = ledger_of(folder, work=_work(session.config), held=True)
        with _timed(session, "certifying", spent), FileEpisodeCache(folder / PLAYED, identity, code) as played:
            done = certified(
                problem.remembering(played), at, [*own, *sinks], issued=_issued(session), ledger=looks
            )
        atomic_io.write(folder / POLICY, done.policy.to_bytes())
        atomic_io.write(folder / CERTIFICATE, done.certificate.to_json().encode())
        _keep_samples(problem, done.policy, folder / EPISODES)
        files = [folder / name for name in OUTCOME if (folder / name).exists()]
        outcome = {path.name: atomic_io.digest(read_bytes(path, OUTCOME[path.name])) for path in files}
        why = remark(done.certificate, done.candidate)
        about = dataclasses.replace(session.about, outcome=outcome, remark=why, ledger=True, seconds=spent)
        about.save(folder)
        for memory in (generation, played):
            memory.forget()
        tracking.finish(done.certificate)
        logger.info("finished: %s, return %s", done.certificate.verdict.name, done.certificate.mean_return)
    return done


def _under_way(problem: Problem) -> int:
    """How many episodes are not in a checkpoint yet: a generation, the one before, and those of a check."""
    checked = problem.settings.max_episodes if problem.settings.until_satisfied else 0
    return 2 * problem.learner.episodes_per_generation + checked


@contextmanager
def _timed(session: RunSession, phase: str, spent: dict[str, float]) -> Iterator[None]:
    """Add how long the block takes to what was spent on a phase; an interruption keeps that too."""
    began = time.monotonic()

    def add() -> None:
        spent[phase] = round(spent.get(phase, 0.0) + time.monotonic() - began, 3)

    try:
        yield
    except BaseException:
        add()
        with suppress(RunError):  # what brought us here is what must be heard of
            dataclasses.replace(session.about, seconds=spent).save(session.folder)
        raise
    add()


def _same(session: RunSession) -> dict[str, Any]:
    """What every checkpoint of this run says."""
    config = session.config
    return {"identity": config.identity, "config": config.to_toml(), "created": session.about.created}


def _work(config: Config) -> str:
    """Whoever goes on with this run to the same end repeats its looks; a longer run takes further ones."""
    return f"run of {_amount(config.settings)} {config.settings.unit}"


def _keep_samples(problem: Problem, policy: Policy, path: Path) -> None:
    """A few episodes for the page; that one of them fails is no reason to lose a certificate."""
    try:
        samples = sample_episodes(problem.domain, policy, problem.requirement, problem.execution)
    except EpisodeError as error:
        logger.warning("no episodes are kept for the page: %s", error)
        path.unlink(missing_ok=True)
    else:
        atomic_io.write(path, samples)


def check_free(folder: Path, overwrite: bool) -> None:
    """Refuse a folder that holds a run already, or files of others."""
    if not folder.exists():
        return
    if not folder.is_dir():
        raise RunError(f"{folder} is a file; give --out the name of a folder")
    if is_run(folder) and not overwrite:
        raise RunError(
            f"{folder} holds a run already: go on with it ({resume_hint(folder, read_run(folder).config)}), "
            "choose another --out, or replace it with --overwrite"
        )
    # A run that was killed before its configuration was written leaves these.
    ours = {LOCK, f".{CONFIG}.tmp", *FILES}
    if not is_run(folder) and (strangers := {path.name for path in folder.iterdir()} - ours):
        raise RunError(
            f"{folder} is not empty and not a run ({', '.join(sorted(strangers)[:3])}, ...); choose another --out"
        )


def _intact_checkpoints(folder: Path) -> Iterator[Checkpoint]:
    """Newest first; damaged ones are reported, not crashed on."""
    for path in checkpoint_files(folder):
        try:
            yield load_checkpoint(path)
        except RunError as error:
            logger.warning("checkpoint %s is damaged: %s; an older one will do", path, error)


def _find_config(folder: Path, found: list[Checkpoint]) -> Config:
    """The configuration that the run began with: its file, or the copy in a checkpoint."""
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
            "start another run (psyco synthesize --config takes a file that you have mended)"
        )
    logger.warning(
        "%s was changed or damaged after the run began; going on with the copy that the checkpoint holds. "
        "For other settings start another run: psyco synthesize --config FILE",
        path,
    )
    return read_config(found[0].about.config, f"the copy of {path}")


def _find_about(folder: Path, found: list[Checkpoint]) -> RunInfo:
    """run.json, or what is known without it."""
    now = versions()
    try:
        about = load_about(folder)
    except RunError as error:
        logger.warning("%s; writing it anew", error)
        return RunInfo(found[0].about.created if found else _now(), now, machine(), {})
    for name, was in about.versions.items():
        if now.get(name) != was:
            logger.warning(
                "this run began with %s %s, here is %s: the result may differ in its last digits",
                name, was, now.get(name, "none"),
            )  # fmt: skip
    return about


def _network(about: RunInfo) -> Network | None:
    """The network that the run began with, if it was kept."""
    if about.network is None:
        return None
    values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in about.network.items()}
    try:
        return Network(**values)
    except TypeError as error:
        raise RunError(f"run.json describes no network: {error}") from None


def start_policy(folder: Path, config: Config) -> Policy | None:
    """The policy that a run started from, out of its folder; None if it started from chance."""
    if not config.settings.start_from:
        return None
    try:
        policy = load_policy(folder / START)
    except RunError as error:
        raise RunError(
            f"{error}; the run started from the policy {config.settings.start_from}: put its file back"
        ) from None
    if named(policy) != config.settings.start_from:
        raise RunError(
            f"{folder / START} was changed or damaged: it holds the policy {named(policy)}, the run started from "
            f"{config.settings.start_from}; put its file back"
        )
    return policy


def _amount(settings: Settings) -> int:
    """The budget, in its own unit."""
    return settings.steps or settings.episodes


def _extended(settings: Settings, totals: Mapping[str, str | None]) -> Settings:
    """The settings with another total, or so many more; in the unit that the run began with."""
    asked = {unit: text for unit, text in totals.items() if text is not None}
    for unit, text in asked.items():
        if unit != settings.unit:
            raise RunError(
                f"the budget of this run is in {settings.unit}: give --{settings.unit}, not --{unit}"
            )
        number = re.fullmatch(r"\+?([0-9]{1,15}|[0-9.]{1,6}[eE]\+?[0-9]{1,2})", text)
        if not number or not float(number[1]).is_integer():
            raise RunError(
                f"--{unit} takes a total such as 100000 or 1e5, or an addition such as +40000, got {text[:80]!r}"
            )
        total = int(float(number[1])) + (_amount(settings) if text.startswith("+") else 0)
        changed: dict[str, Any] = {unit: total}
        settings = dataclasses.replace(settings, **changed)
    return settings


def _done(found: list[Checkpoint], problem: Problem) -> int:
    """What the checkpoints say has been spent, in the unit of the budget."""
    if problem.settings.steps:
        return max((int(c.tensors.get(STEPS, 0)) for c in found), default=0)
    return max((c.about.generation for c in found), default=0) * problem.learner.episodes_per_generation


def _choose(
    folder: Path, config: Config, problem: Problem, found: list[Checkpoint]
) -> tuple[TrainingState | None, int]:
    """The newest checkpoint that belongs to this configuration and to metrics.csv as it is, and its part of that."""
    template = beginning(problem)
    try:
        metrics = read_bytes(folder / METRICS, "table of metrics", inside=folder)
    except RunError:
        metrics = b""
    for checkpoint in found:
        about = checkpoint.about
        try:
            if about.identity != config.identity:
                raise RunError("it belongs to another configuration")
            if not problem.settings.steps and about.generation > problem.generations:
                raise RunError("it lies behind the end of the run")
            if atomic_io.digest(metrics[: about.metrics_size]) != about.metrics_digest:
                raise RunError(f"{METRICS} is damaged before this point")
            restored: TrainingState = checkpoint.restore(template)
            return restored._replace(generation=about.generation), about.metrics_size
        except RunError as error:
            logger.warning("the checkpoint after %d generations can't be used: %s", about.generation, error)
    if found or metrics:
        logger.warning("no intact checkpoint: learning starts over, which gives the same result")
    return None, 0


def _mend(path: Path, content: bytes) -> None:
    """Write a file unless it is as it should be; what stood there instead is put aside."""
    try:
        found = read_bytes(path, "configuration")
        if found == content:
            return
        if path.name != CONFIG or not is_sealed(found.decode(errors="replace")):
            logger.warning("%s was changed or damaged; it is written anew", path)
            path.replace(path.with_name(f"{path.name}.damaged"))
    except (RunError, OSError):
        pass
    atomic_io.write(path, content)


def _requirement(config: Config) -> bytes:
    return f"{config.requirement.strip()}\n".encode()


def _run_name(session: RunSession) -> RunName:
    config = session.config
    settings = dataclasses.asdict(config.settings)
    options = settings.pop("options")
    flat = {f"domain.{key}": value for key, value in config.parameters.items()}
    flat |= {f"learner.{key}": value for key, value in options.items()}
    identity = atomic_io.digest(f"{session.folder.resolve()} {session.about.created}".encode())
    return RunName(
        session.folder,
        identity,
        {"domain": config.domain, "requirement": config.requirement, **settings, **flat},
    )


def _issued(session: RunSession) -> str:
    """The certificate's time is the run's, so that it does not depend on interruptions."""
    return datetime.fromtimestamp(session.about.created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _now() -> int:
    """Seconds since 1970; SOURCE_DATE_EPOCH fixes it for runs that are to be the same to the byte."""
    return int(os.environ.get("SOURCE_DATE_EPOCH") or time.time())


class _LogFile(logging.FileHandler):
    def handleError(self, record: logging.LogRecord) -> None:
        """A log that can't be written (a full disk, say) is no reason to stop a run."""

    def emit(self, record: logging.LogRecord) -> None:
        """Nor is one that can't even be opened."""
        with suppress(OSError):
            super().emit(record)


@contextmanager
def _log(folder: Path) -> Iterator[None]:
    """Everything from INFO on also goes to the run's log while the block lasts."""
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
