"""Execute a run: learn, select, certify, and write the results into its folder; keep a baseline beside it."""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from psyco._src.core import files
from psyco._src.core.errors import EpisodeError, RunError
from psyco._src.core.files import read_bytes
from psyco._src.logic.ast import Requirement
from psyco._src.policies.serialization import Policy, load_policy
from psyco._src.runs.baselines import GIVEN_NAME, UNCONSTRAINED_NAME
from psyco._src.runs.episode_cache import FileEpisodeCache
from psyco._src.runs.live_progress import PROGRESS, LiveProgress
from psyco._src.runs.problem import Problem
from psyco._src.runs.sample_trajectories import sample_episodes, sampling_callback
from psyco._src.runs.select import CertifiedPolicy, certify_best, remark
from psyco._src.runs.session import RunSession, build_problem, resume_run, start_run
from psyco._src.runs.store import (
    BASELINE,
    CONFIG,
    EPISODES,
    GENERATION,
    OUTCOME,
    PLAYED,
    POLICY,
    is_run,
    open_ledger,
    read_run,
    write_certificate,
    write_newest_certificate,
)
from psyco._src.runs.tracking import start_trackers
from psyco._src.runs.train import Callback, RunProgress, is_stopped, learn
from psyco._src.runs.writer import CHECKPOINT_EVERY, RunWriter
from psyco._src.verification.certificate import CHANGED_CODE_NOTE

logger = logging.getLogger(__name__)


def execute(
    session: RunSession, *, callbacks: Sequence[Callback] = (), checkpoint_every: float = CHECKPOINT_EVERY
) -> CertifiedPolicy | None:
    """Learn, select, certify, and write the results; an interruption saves the state of training.

    Returns None if a callback stopped the run.
    """
    folder, config, problem = session.folder, session.config, session.problem
    session.info.save(folder)
    seconds = dict(session.info.seconds)
    header = {
        "identity": config.identity,
        "config": config.to_toml(),
        "created": session.info.created,
        "code": session.code,
    }
    with (
        RunWriter(folder, header, session.metrics_size, checkpoint_every) as writer,
        start_trackers(session.trackers, session.tracked_name) as tracking,
        LiveProgress(folder / PROGRESS) as progress,
    ):
        own = [
            Callback(writer.on_metrics, writer.on_checkpoint, writer.on_error),
            Callback(on_metrics=tracking.on_metrics),
            sampling_callback(folder / EPISODES),
            Callback(on_progress=progress.on_progress, on_look=progress.on_look),
        ]
        # Learn. Cached episodes are those that no checkpoint contains yet.
        with (
            _timed(session, "learning", seconds),
            FileEpisodeCache(
                folder / GENERATION,
                config.identity,
                problem.code_hash,
                max_episodes=_unsaved_episodes(problem),
            ) as generation,
        ):
            postpone = Callback(on_checkpoint=lambda *_: generation.postpone_save())
            state = learn(problem.with_cache(generation), [*own, postpone, *callbacks], session.start)
        if is_stopped(callbacks):
            dataclasses.replace(session.info, seconds=seconds).save(folder)
            logger.info("stopped by a callback")
            return None
        if problem.clock is not None and (steps := int(state.state.steps)) < config.settings.steps:
            config = dataclasses.replace(config, settings=dataclasses.replace(config.settings, stop_after=steps))
            files.write(folder / CONFIG, config.to_toml().encode())
            logger.info("the time for learning was over after %d of %d steps", steps, config.settings.steps)
        writer.save()
        references = _references(session, callbacks, checkpoint_every)
        if is_stopped(callbacks):
            return None
        # Select and certify.
        with (
            _timed(session, "certifying", seconds),
            FileEpisodeCache(folder / PLAYED, config.identity, problem.code_hash) as played,
        ):
            done = certify_best(
                problem.with_cache(played),
                state,
                [*own, *callbacks],
                issued=session.issued,
                ledger=open_ledger(folder, work=session.work, held=True),
                references=references,
            )
        if len(session.code) > 1:
            notes = (CHANGED_CODE_NOTE, *done.certificate.notes)
            done = done._replace(certificate=dataclasses.replace(done.certificate, notes=notes))
        # Write the results. run.json comes last: its checksums say that the run has finished.
        files.write(folder / POLICY, done.policy.to_bytes())
        name = write_certificate(folder, done.certificate)
        _write_samples(problem, done.policy, folder / EPISODES)
        kinds = {**OUTCOME, name: "certificate"}
        written = [each for each in kinds if (folder / each).exists()]
        info = dataclasses.replace(
            session.info,
            outcome={each: files.digest(read_bytes(folder / each, kinds[each])) for each in written},
            remark=remark(done.certificate, done.candidate, done.baselines),
            baselines=done.baselines,
            certified_generation=done.candidate.generation,
            ledger=True,
            seconds=seconds,
        )
        write_newest_certificate(folder, info)
        info.save(folder)
        for cache in (generation, played):
            cache.delete()
        tracking.finish(done.certificate)
        logger.info("finished: %s, return %s", done.certificate.verdict.name, done.certificate.mean_return)
    return done


def add_baseline(session: RunSession, policy: Policy | None) -> None:
    """Keep a policy in the run folder, to compare the certified one with.

    Args:
        session: of a run that has not been executed yet.
        policy: the policy; None: one that is learned without the constraints, with the same budget and learner, in a
            run of its own in that folder.
    """
    folder, problem = session.folder / BASELINE, session.problem
    if policy is not None:
        folder.mkdir()
        files.write(folder / POLICY, policy.to_bytes())
        return
    config = dataclasses.replace(session.config, requirement=str(Requirement(problem.requirement.goal)), tracking=())
    other = build_problem(
        config, domain=problem.domain, execution=problem.execution, initial_policy=problem.initial_policy
    )
    with start_run(folder, config, other) as later:  # it is executed after the learning of this run
        later.info.save(folder)


def _references(session: RunSession, callbacks: Sequence[Callback], checkpoint_every: float) -> dict[str, Policy]:
    """Return the policy that `add_baseline` has kept, by its name for tables; if need be, learn it."""
    folder, settings = session.folder / BASELINE, session.config.settings
    if not is_run(folder):
        return {GIVEN_NAME: load_policy(folder / POLICY)} if (folder / POLICY).exists() else {}

    def report(now: RunProgress) -> None:
        for callback in callbacks if now.phase in ("learning", "selecting", "certifying") else ():
            callback.on_progress(now._replace(phase=f"{now.phase} the baseline"))

    listener = Callback(on_progress=report, should_stop=lambda: is_stopped(callbacks))
    with resume_run(
        folder,
        **{settings.unit: str(getattr(settings, settings.unit))},
        domain=session.problem.domain,
        execution=session.problem.execution,
        allow_changed_code=len(session.code) > 1,
    ) as other:
        if other is not None and execute(other, callbacks=[listener], checkpoint_every=checkpoint_every) is None:
            return {}
    return {UNCONSTRAINED_NAME: read_run(folder).policy}


def _unsaved_episodes(problem: Problem) -> int:
    """Return how many episodes may not be in a checkpoint yet: two generations, and those of a check."""
    checked = problem.settings.max_episodes if problem.settings.until_satisfied else 0
    return 2 * problem.learner.episodes_per_generation + checked


@contextmanager
def _timed(session: RunSession, phase: str, seconds: dict[str, float]) -> Iterator[None]:
    """Add the duration of the block to a phase; on an interruption write it to run.json."""
    began = time.monotonic()

    def add() -> None:
        seconds[phase] = round(seconds.get(phase, 0.0) + time.monotonic() - began, 3)

    try:
        yield
    except BaseException:
        add()
        with suppress(RunError):  # the original error matters more
            dataclasses.replace(session.info, seconds=seconds).save(session.folder)
        raise
    add()


def _write_samples(problem: Problem, policy: Policy, path: Path) -> None:
    """Write sample episodes for the page; a failing episode must not cost the certificate."""
    try:
        samples = sample_episodes(problem, policy)
    except EpisodeError as error:
        logger.warning("no sample episodes for the page: %s", error)
        path.unlink(missing_ok=True)
    else:
        files.write(path, samples)
