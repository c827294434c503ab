"""Working on a run: start it, or go on where it stopped. It ends with the same bytes either way.

Learning depends on the configuration and the generations' numbers alone, so going on from any earlier state gives
the same result. What is kept must only be consistent: a checkpoint names the part of metrics.csv that belongs to
it, and whatever was appended later is dropped when a run goes on from there.
"""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from psyco._src.certify.certificate import Certificate
from psyco._src.errors import EpisodeError, RunError
from psyco._src.learn.metrics import Metrics
from psyco._src.policy.file import Policy
from psyco._src.run import checkpoint as checkpoints
from psyco._src.run import durable
from psyco._src.run.checkpoint import Checkpoint, checkpoint_files, load_checkpoint, save_checkpoint
from psyco._src.run.config import Config, is_sealed, read_config
from psyco._src.run.folder import (
    CERTIFICATE,
    CONFIG,
    FILES,
    LOG,
    METRICS,
    OUTCOME,
    POLICY,
    REQUIREMENT,
    About,
    damaged_outcome,
    is_run,
    load_about,
    machine,
    versions,
)
from psyco._src.run.lock import LOCK, lock
from psyco._src.run.tracking import RunName, track
from psyco._src.synthesis.problem import Problem, Snapshot, beginning, certified, deployed, learn

logger = logging.getLogger(__name__)

CHECKPOINT_EVERY = 2.0  # seconds
CHECKPOINT_SHARE = 0.01  # of the time, at most


@dataclass(frozen=True)
class Session:
    """One process at work on a run; it holds the folder's lock."""

    folder: Path
    config: Config
    problem: Problem
    about: About
    start: Snapshot | None  # where to go on; None: at the beginning
    metrics_size: int = 0  # bytes of metrics.csv that belong to `start`
    finished: bool = False  # there is nothing left to do


class Outcome(NamedTuple):
    """What a run ended with."""

    policy: Policy
    certificate: Certificate
    snapshot: Snapshot  # the last; its metrics are empty if nothing was left to learn


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
    folder: Path, config: Config, *, problem: Problem | None = None, overwrite: bool = False
) -> Iterator[Session]:
    """Write down what will be run, before it runs; a folder that holds a run already is refused."""
    problem = problem or config.prepare()
    config = config.complete(problem)
    text = config.to_toml()
    _check_free(folder, overwrite)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"cannot make the folder {folder}: {error.strerror}") from None
    with lock(folder):
        _check_free(folder, overwrite)  # another process may have been faster
        for name in FILES:
            (folder / name).unlink(missing_ok=True)
        shutil.rmtree(folder / checkpoints.FOLDER, ignore_errors=True)
        durable.write(folder / CONFIG, text.encode())
        durable.write(folder / REQUIREMENT, _requirement(config))
        about = About(_now(), versions(), machine(), {})
        with _log(folder):
            logger.info(
                "started: %s, %d episodes, seed %d",
                config.domain,
                config.settings.episodes,
                config.settings.seed,
            )
            yield Session(folder, config, problem, about, None)


@contextmanager
def resume_run(folder: Path, *, episodes: str | None = None) -> Iterator[Session]:
    """Find the newest state that is intact and go on from there.

    Args:
        folder: of the run.
        episodes: another total, `"100000"`, or so many more, `"+40000"`.
    """
    if not is_run(folder):
        raise RunError(f"{folder} is not a run folder: it has no {CONFIG}")
    with lock(folder), _log(folder):
        found = list(_intact_checkpoints(folder))
        config = _find_config(folder, found)
        problem = config.prepare()
        about = _find_about(folder, found)
        if episodes is not None:
            done = (
                max((c.about.generation for c in found), default=0) * problem.learner.episodes_per_generation
            )
            longer = _total(episodes, config, config.settings.episodes if about.outcome else done, folder)
            if longer != config.settings.episodes:
                if about.outcome:
                    logger.warning(
                        "this run was certified before; its new certificate does not count that look"
                    )
                about = dataclasses.replace(about, outcome={})
                config = dataclasses.replace(
                    config, settings=dataclasses.replace(config.settings, episodes=longer)
                )
                problem = config.prepare()
        broken = damaged_outcome(folder, about)
        for problem_found in broken:
            logger.warning("%s", problem_found)
        if about.outcome and not broken:
            yield Session(folder, config, problem, about, None, finished=True)
            return
        about = dataclasses.replace(about, outcome={})
        about.save(folder)
        for name, content in {CONFIG: config.to_toml().encode(), REQUIREMENT: _requirement(config)}.items():
            _mend(folder / name, content)
        start, size = _choose(folder, config, problem, found)
        done = start.generation if start else 0
        logger.info("resumed after %d of %d generations", done, problem.generations)
        yield Session(folder, config, problem, about, start, size)


def execute(
    session: Session,
    *,
    on_segment: Callable[[Problem, Snapshot], None] = lambda problem, snapshot: None,
    checkpoint_every: float = CHECKPOINT_EVERY,
) -> Outcome:
    """Learn what is left to learn, verify, and keep everything; an interruption keeps where learning stood."""
    folder, problem = session.folder, session.problem
    session.about.save(folder)
    snapshot = session.start
    with (
        _Keeper(session, checkpoint_every) as keeper,
        track(session.config.tracking, _run_name(session)) as tracking,
    ):
        try:
            for snapshot in learn(problem, session.start):
                keeper.keep(snapshot)
                tracking.log(snapshot.metrics)
                on_segment(problem, snapshot)
            assert snapshot is not None, "a run has at least one generation"
            keeper.save()
            policy, certificate = certified(problem, snapshot.state, issued=_issued(session))
        except EpisodeError as error:
            if snapshot is not None:
                error.policy = deployed(problem, snapshot.state)
                durable.write(folder / POLICY, error.policy.to_bytes())
            raise
        durable.write(folder / POLICY, policy.to_bytes())
        durable.write(folder / CERTIFICATE, certificate.to_json().encode())
        outcome = {name: durable.digest((folder / name).read_bytes()) for name in OUTCOME}
        dataclasses.replace(session.about, outcome=outcome).save(folder)
        tracking.finish(certificate)
        logger.info("finished: %s, return %s", certificate.verdict.name, certificate.mean_return)
    return Outcome(policy, certificate, snapshot)


class _Keeper:
    """Appends metrics, and writes a checkpoint now and then; as a context it saves the last state when it is left."""

    def __init__(self, session: Session, every: float) -> None:
        self.session, self.every = session, every
        path, size = session.folder / METRICS, session.metrics_size
        try:
            (session.folder / checkpoints.FOLDER).mkdir(exist_ok=True)
            self.file = path.open("r+b" if path.exists() else "w+b", buffering=0)
            self.digest = hashlib.sha256(self.file.read(size))
            self.file.truncate(size)
        except OSError as error:
            raise durable.failed(path, error) from None
        self.size = size
        config = session.config
        self.same: dict[str, Any] = {  # what every checkpoint of this run says
            "identity": config.identity,
            "config": config.to_toml(),
            "created": session.about.created,
        }
        self.pending: checkpoints.About | None = None
        self.snapshot: Snapshot | None = None
        self.due = time.monotonic() + every

    def __enter__(self) -> _Keeper:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            self.save()
        except RunError:
            if kind is None:  # else it was a last attempt, which must not hide the error that brought us here
                raise
        finally:
            self.file.close()

    def keep(self, snapshot: Snapshot) -> None:
        """Append the rows of a segment; save if it is time."""
        data = snapshot.metrics.to_csv(header=self.size == 0).encode()
        try:
            self.file.seek(self.size)
            view = memoryview(data)
            while view:
                view = view[self.file.write(view) :]
        except OSError as error:
            raise durable.failed(self.session.folder / METRICS, error) from None
        self.digest.update(data)
        self.size += len(data)
        if _is_whole(self.session.problem, snapshot):
            self.snapshot = snapshot
            self.pending = checkpoints.About(
                generation=snapshot.generation,
                metrics_size=self.size,
                metrics_digest=self.digest.hexdigest(),
                **self.same,
            )
        if time.monotonic() >= self.due:
            self.save()

    def save(self) -> None:
        """Write a checkpoint of the last whole segment, unless it is there already."""
        if self.pending is None or self.snapshot is None:
            return
        began = time.monotonic()
        try:
            durable.sync(self.file.fileno())
        except OSError as error:
            raise durable.failed(self.session.folder / METRICS, error) from None
        save_checkpoint(self.session.folder, self.pending, self.snapshot._replace(metrics=None))  # type: ignore[arg-type]
        logger.debug("checkpoint after %d generations", self.pending.generation)
        self.pending = None
        now = time.monotonic()
        # Where the disk is slow, save less often, so that saving takes no more than its share of the time.
        self.due = now + max(self.every, (now - began) / CHECKPOINT_SHARE) if self.every else now


def _is_whole(problem: Problem, snapshot: Snapshot) -> bool:
    """Whether the run would pass through this state however long it is, and whatever befalls it.

    Not so at the end of a shorter last segment, or where an environment failed on the way or during verification.
    """
    verified = problem.settings.verify_every and problem.requirement.constraints
    complete = not verified or bool(snapshot.metrics["verdict"][-1])
    return complete and snapshot.generation % problem.segment == 0


def _check_free(folder: Path, overwrite: bool) -> None:
    if not folder.exists():
        return
    if not folder.is_dir():
        raise RunError(f"{folder} is a file; give --out the name of a folder")
    if is_run(folder) and not overwrite:
        raise RunError(
            f"{folder} holds a run already: go on with it (psyco resume {folder}), "
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
        text = path.read_text(encoding="utf-8")
        if is_sealed(text):
            return read_config(text, str(path))
    except (OSError, UnicodeDecodeError):
        pass
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


def _find_about(folder: Path, found: list[Checkpoint]) -> About:
    """run.json, or what is known without it."""
    now = versions()
    try:
        about = load_about(folder)
    except RunError as error:
        logger.warning("%s; writing it anew", error)
        return About(found[0].about.created if found else _now(), now, machine(), {})
    for name, was in about.versions.items():
        if now.get(name) != was:
            logger.warning(
                "this run began with %s %s, here is %s: the result may differ in its last digits",
                name, was, now.get(name, "none"),
            )  # fmt: skip
    return about


def _total(episodes: str, config: Config, done: int, folder: Path) -> int:
    if not re.fullmatch(r"\+?\d+", episodes):
        raise RunError(
            f"--episodes takes a total such as 100000 or an addition such as +40000, got {episodes!r}"
        )
    total = int(episodes) + (config.settings.episodes if episodes.startswith("+") else 0)
    if total < done:
        raise RunError(
            f"{folder} has {done:,} episodes already; give a larger total than that, or +{episodes} for so many more"
        )
    return total


def _choose(
    folder: Path, config: Config, problem: Problem, found: list[Checkpoint]
) -> tuple[Snapshot | None, int]:
    """The newest checkpoint that belongs to this configuration and to metrics.csv as it is, and its part of that."""
    template = beginning(problem)._replace(metrics=None)  # type: ignore[arg-type]
    try:
        metrics = (folder / METRICS).read_bytes()
    except OSError:
        metrics = b""
    for checkpoint in found:
        about = checkpoint.about
        try:
            if about.identity != config.identity:
                raise RunError("it belongs to another configuration")
            if about.generation > problem.generations:
                raise RunError("it lies behind the end of the run")
            if durable.digest(metrics[: about.metrics_size]) != about.metrics_digest:
                raise RunError(f"{METRICS} is damaged before this point")
            restored: Snapshot = checkpoint.restore(template)
            return restored._replace(generation=about.generation, metrics=Metrics({})), about.metrics_size
        except RunError as error:
            logger.warning("the checkpoint after %d generations can't be used: %s", about.generation, error)
    if found or metrics:
        logger.warning("no intact checkpoint: learning starts over, which gives the same result")
    return None, 0


def _mend(path: Path, content: bytes) -> None:
    """Write a file unless it is as it should be; what stood there instead is put aside."""
    try:
        if path.read_bytes() == content:
            return
        if path.name != CONFIG or not is_sealed(path.read_text(errors="replace")):
            logger.warning("%s was changed or damaged; it is written anew", path)
            path.replace(path.with_name(f"{path.name}.damaged"))
    except OSError:
        pass
    durable.write(path, content)


def _requirement(config: Config) -> bytes:
    return f"{config.requirement.strip()}\n".encode()


def _run_name(session: Session) -> RunName:
    config = session.config
    settings = dataclasses.asdict(config.settings)
    options = settings.pop("options")
    flat = {f"domain.{key}": value for key, value in config.parameters.items()}
    flat |= {f"learner.{key}": value for key, value in options.items()}
    identity = durable.digest(f"{session.folder.resolve()} {session.about.created}".encode())
    return RunName(
        session.folder,
        identity,
        {"domain": config.domain, "requirement": config.requirement, **settings, **flat},
    )


def _issued(session: Session) -> str:
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
