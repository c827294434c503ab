"""Read, draw and export runs and their policies."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from psyco._src.api.coerce import (
    AnyDomain,
    PolicyLike,
    as_actor,
    as_certificate,
    as_domain,
    find_policy,
    find_run,
    verb,
)
from psyco._src.core import files
from psyco._src.core.checks import check_count
from psyco._src.core.errors import DomainError, RunError
from psyco._src.envs.base import Domain, counters_of, written_for
from psyco._src.envs.gym_env import GymDomain
from psyco._src.envs.registry import BUILT_IN, DomainDescription, make_from_description, trusted_names
from psyco._src.learners.metrics import Metrics
from psyco._src.logic.ast import Requirement
from psyco._src.logic.parser import parse
from psyco._src.logic.quantifiers import Team, groups_by_name, write_out
from psyco._src.logic.requirement import AnyRequirement, as_requirement
from psyco._src.logic.runtime_monitor import Monitor, episode_verdict
from psyco._src.policies.c_export import c_files
from psyco._src.policies.external import AnyPolicy
from psyco._src.policies.guard import Guard
from psyco._src.policies.onnx_export import export_onnx
from psyco._src.policies.serialization import Policy
from psyco._src.rollout.episodes import Stream, episode_keys, episode_seeds
from psyco._src.rollout.execution import IN_PROCESS, Execution
from psyco._src.rollout.gym_sampler import Signals
from psyco._src.rollout.record import record_episodes
from psyco._src.runs.store import Run, is_run
from psyco._src.verification.certificate import Certificate
from psyco._src.verification.counterexamples import (
    Counterexamples,
    certificate_key,
    find_counterexamples,
    find_player,
)

MAX_SEARCHED = 1000  # episodes among which violations are looked for


@verb
def open_run(folder: str | Path) -> Run:
    """Read a run from its folder, without changing it or importing code that it names.

    Args:
        folder: the run folder.
    """
    return find_run(folder)


@verb
def metrics(run: Run | str | Path) -> Metrics:
    """Return the metrics table of a run, one row per generation: `psyco.metrics("runs/dance").plot()` draws it.

    Args:
        run: the run, or its folder; it may be running.
    """
    return find_run(run).metrics


@verb
def record(
    policy: PolicyLike,
    domain: AnyDomain | None = None,
    *,
    parameters: Mapping[str, Any] | None = None,
    seed: int = 0,
    episode: int = 0,
    trust: Collection[str] = (),
) -> Signals:
    """Record all signals of one episode of n steps: arrays `[n+1]`, or `[n+1, size]` for vectors.

    Args:
        policy: the policy, as in `verify`.
        domain: the domain in which the policy acts; default: that of its training.
        parameters: changes to the parameters of the domain.
        seed: seed of the episodes; they serve no other purpose.
        episode: index of the episode.
        trust: code (`module:name`) that files name and that may be imported, and files that may run code themselves.
    """
    found, where = as_actor(policy, domain, parameters, trust)
    return record_episodes(where, found, seed=seed, first=episode, count=1)[0]


@verb
def report(run: Run | str | Path, out: str | Path | None = None) -> Path:
    """Write one self-contained HTML page about a run and return its path.

    Args:
        run: the run, or its folder.
        out: file name; default: `report.html` in the run folder.
    """
    from psyco._src.reports.run_page import run_page

    found = find_run(run)
    path = found.folder / "report.html" if out is None else Path(out)
    files.write(path, run_page(found).encode())
    return path


@verb
def export(policy: PolicyLike, path: str | Path, *, agent: str | None = None) -> float:
    """Export a policy to ONNX, with observation scaling and action range, and compare the file with the policy.

    Args:
        policy: a PSyCo policy, its file, a run or its folder.
        path: file name.
        agent: the agent whose policy it is, where there are several.

    Returns:
        The largest difference between an action of the file and of the policy, relative to the action range.
    """
    return export_onnx(_own(find_policy(policy)[0], agent), path)


@verb
def export_c(
    policy: PolicyLike,
    folder: str | Path,
    *,
    requirement: AnyRequirement | None = None,
    horizon: int | None = None,
    counters: Collection[str] | None = None,
    agent: str | None = None,
) -> list[Path]:
    """Export a policy and the monitor of its requirement to C99 without dependencies.

    Writes a header, a source and a small test program. A formula whose monitor is too large for a table is an error.

    Args:
        policy: a PSyCo policy, its file, a run or its folder.
        folder: output folder.
        requirement: the monitored requirement; default: that of its run.
        horizon: longest episode, in steps; default: that of its training, if the policy file has it.
        counters: signals that never decrease; default: those of a built-in domain.
        agent: the agent whose policy it is, where there are several.

    Returns:
        The written files.
    """
    anything, own = find_policy(policy)
    found = _own(anything, agent)
    team = team_of_policy(found if agent is None else anything)  # type: ignore[arg-type]  # `_own` has checked it
    wanted = requirement if requirement is not None else own and parse(own)
    declared = counters_of(BUILT_IN[found.domain]) if found.domain in BUILT_IN else ()
    texts = c_files(
        found,
        None if wanted is None else write_out(as_requirement(wanted), team, "the policy"),
        horizon=found.parameters.get("horizon") if horizon is None else horizon,
        counters=declared if counters is None else counters,
    )
    where = _made_folder(folder)
    for name, text in texts.items():
        files.write(where / name, text.encode("ascii"))
    return [where / name for name in texts]


def team_of_policy(policy: Policy) -> Team:
    """Return the agents of a joint policy, in the groups of their numbers; none where there is one agent."""
    return Team(policy.agents, groups_by_name(policy.agents))


def _own(policy: AnyPolicy, agent: str | None) -> Policy:
    """Return a PSyCo policy, or that of one agent; raise an error for policies that cannot be exported."""
    if isinstance(policy, Guard):
        raise RunError(
            f"{policy.source} is a guard, with a memory and two policies: export each of them, with the monitor "
            "(psyco export --c), and let your program choose"
        )
    if not isinstance(policy, Policy):
        raise RunError(f"{policy.source} is an external policy; only PSyCo policies can be exported")
    return policy if agent is None else policy.agent(agent)


@verb
def render(
    policy: PolicyLike,
    folder: str | Path,
    *,
    domain: AnyDomain | None = None,
    requirement: AnyRequirement | None = None,
    parameters: Mapping[str, Any] | None = None,
    certificate: Certificate | str | Path | None = None,
    episodes: int = 3,
    episode: int = 0,
    violated: bool = False,
    animation: bool = True,
    film_format: str = "auto",
    seed: int | None = None,
    trust: Collection[str] = (),
    on_remark: Callable[[str], None] = lambda text: None,
) -> list[Path]:
    """Draw episodes of a policy and animate the first of them.

    With a requirement, the picture shows the verdict of each episode, the step at which it was decided, and the terms
    of the requirement with their bounds. For a Gymnasium environment that renders itself (`rgb_array`), the animation
    is a video.

    Args:
        policy: the policy, as in `verify`; or a certificate in its run folder, for the policy of that run.
        folder: output folder.
        domain: the domain in which the policy acts; default: that of the certificate, or of its training.
        requirement: the requirement; default: that of the certificate, or of its run.
        parameters: changes to the parameters of the domain.
        certificate: draw episodes of this certificate of the policy; they are numbered from 0.
        episodes: number of episodes in the picture.
        episode: index of the first one.
        violated: draw only episodes that violate the requirement.
        animation: also write an animation of the first one.
        film_format: of the animation: "mp4", "webm", "gif", or "auto": MP4 or WebM where ffmpeg is installed
            (`psyco[film]`), else GIF.
        seed: seed of the episodes, by default 0; of those of a certificate, draw the one with this seed.
        trust: code (`module:name`) that files name and that may be imported, and files that may run code themselves.
        on_remark: called with a sentence if an environment cannot be rendered.

    Returns:
        The written files.
    """
    from psyco._src.reports.film import AUTO, MISSING, resolve_format
    from psyco._src.reports.trajectory import Video, animate_trajectory, animate_video, draw_trajectory, record_video

    resolve_format(film_format)
    if certificate is None and isinstance(policy, str | Path) and str(policy).endswith(".json"):
        policy, certificate = run_of_certificate(Path(policy)), policy
    own, of_run = find_policy(policy, trust)
    claimed = as_certificate(certificate)
    origin: dict[str, Any] = {"seed": 0 if seed is None else seed}
    if claimed is not None:
        origin = _certificate_origin(claimed, own)
        if seed is not None:
            episode, episodes = _episode_of_seed(claimed, seed), 1
        if domain is None and claimed.domain is not None:
            named = {**claimed.parameters, **(parameters or {})}
            domain, parameters = (
                make_from_description(DomainDescription(claimed.domain, named), trusted_names(trust)),
                {},
            )
    found, where_it_acts = as_actor(own, domain, parameters, trust)
    text = of_run if claimed is None else claimed.requirement
    wanted = as_requirement(requirement) if requirement is not None else parse(text) if text else None
    wanted = None if wanted is None else written_for(wanted, where_it_acts)
    if violated and wanted is None:
        raise RunError(
            f"{policy} has no requirement that an episode could violate; give one with requirement (--require)"
        )
    judge = _judge(wanted, where_it_acts)
    paths = _find_episodes(
        lambda first, count: record_episodes(where_it_acts, found, first=first, count=count, **origin),
        lambda path: not violated or judge(path).startswith("violated"),
        first=check_count("episode", episode, 0),
        count=check_count("episodes", episodes),
        last=None if claimed is None else claimed.episodes_seen,
    )
    index = next(iter(paths))
    shown: Video | None = None
    if isinstance(where_it_acts, GymDomain):
        try:
            shown = record_video(where_it_acts, found, first=index, **origin)
            paths[index] = dict(shown.signals)
        except DomainError as error:
            on_remark(f"drawing signals instead: {error}")
    where = _made_folder(folder)
    drawn = [where / "trajectory.png"]
    outcomes = [", ".join(filter(None, (f"episode {index}", judge(path)))) for index, path in paths.items()]
    draw_trajectory(where_it_acts, list(paths.values()), drawn[0], shown.frames if shown else (), outcomes, wanted)
    if animation:
        drawn.append(where / f"trajectory.{resolve_format(film_format)}")
        if (film_format, drawn[1].suffix) == (AUTO, ".gif"):
            on_remark(MISSING)
        if shown:
            animate_video(shown, drawn[1])
        else:
            animate_trajectory(where_it_acts, paths[index], drawn[1], wanted)
    return drawn


@verb
def counterexamples(
    policy: PolicyLike | Certificate,
    *,
    certificate: Certificate | str | Path | None = None,
    traces: str | Path | None = None,
    domain: AnyDomain | None = None,
    worst: int = 5,
    film: bool = True,
    film_format: str = "auto",
    out: str | Path | None = None,
    trust: Collection[str] = (),
    execution: Execution = IN_PROCESS,
) -> Counterexamples:
    """Play the worst episodes of a certificate again and explain them; `print` or a notebook shows the result.

    They are ranked by how far they are from satisfying, as learning measures it. If fewer violate than wanted, those
    that came closest follow. Each has a smallest set of subformulas and steps that decides its verdict.

    Args:
        policy: a run or its folder, a result of `synthesize`, or a certificate in a run folder or of recorded traces;
            with `certificate`, any policy as in `verify`.
        certificate: the certificate of the policy; default: the newest one of its run.
        traces: file of the traces, if the certificate is about these.
        domain: the domain in which the policy acts; default: as described in the certificate.
        worst: number of episodes per constraint.
        film: make a film of each: of the scene of a compiled domain, or of the frames that a Gymnasium environment
            renders (`rgb_array`).
        film_format: "mp4", "webm", "gif", or "auto", as in `render`.
        out: also write everything as one HTML page to this file.
        trust: code (`module:name`) that files name and that may be imported, and files that may run code themselves.
        execution: worker processes of a Gymnasium environment.
    """
    from psyco._src.reports.counterexamples_page import counterexamples_page, with_films

    worst = check_count("worst", worst)
    subject, claimed, title = _certified(policy, certificate)
    actor = None if subject is None else find_policy(subject, trust)[0]
    where = None if domain is None else as_domain(domain)
    player, acted_in = find_player(claimed, actor, where, traces, trusted_names(trust), execution)
    found = find_counterexamples(claimed, player, worst=worst)
    if film and acted_in is not None and actor is not None:
        found = with_films(found, acted_in, actor, film_format)
    if out is not None:
        files.write(Path(out), counterexamples_page(found, title).encode())
    return found


def _certified(
    policy: PolicyLike | Certificate, certificate: Certificate | str | Path | None
) -> tuple[PolicyLike | None, Certificate, str]:
    """Return a policy, its certificate, and a title; no policy if the certificate is about recorded episodes."""
    if isinstance(policy, Certificate):
        return None, policy, str(policy.domain or "recorded episodes")
    if certificate is None and isinstance(policy, str | Path) and str(policy).endswith(".json"):
        claimed = as_certificate(policy)
        assert claimed is not None
        return run_of_certificate(Path(policy)) if claimed.policy else None, claimed, Path(policy).name
    if isinstance(policy, str | Path) and os.path.isdir(policy):  # False, not an error, for an impossible name
        policy = find_run(policy)
    own = getattr(policy, "certificate", None)
    claimed = as_certificate(certificate) or (own if isinstance(own, Certificate) else None)
    if claimed is None:
        raise RunError(
            f"{policy} has no certificate, whose episodes could be played again: verify it first (psyco verify), and "
            "give the certificate with certificate (--certificate)"
        )
    return policy, claimed, policy.folder.resolve().name if isinstance(policy, Run) else str(claimed.domain)


def _find_episodes(
    record: Callable[[int, int], list[Signals]],
    accept: Callable[[Signals], bool],
    *,
    first: int,
    count: int,
    last: int | None,
) -> dict[int, Signals]:
    """Return the first accepted episodes by index, from `first` on and below `last`; raise if there is none."""
    found: dict[int, Signals] = {}
    end = first + MAX_SEARCHED if last is None else last
    for start in range(first, end, count):
        made = record(start, min(count, end - start))
        found |= {start + i: path for i, path in enumerate(made) if accept(path)}
        if len(found) >= count:
            break
    if first >= end:
        raise RunError(f"there is no episode {first:,}: the certificate has {end:,}, numbered from 0")
    if not found:
        raise RunError(f"none of the episodes {first:,} to {end - 1:,} violates the requirement")
    return {index: found[index] for index in sorted(found)[:count]}


def _episode_of_seed(certificate: Certificate, seed: int) -> int:
    """Return the number of a certificate's episode, from the seed of its environment."""
    seeds = episode_seeds(episode_keys(certificate_key(certificate), 0, certificate.episodes_seen))
    if seed not in seeds:
        raise RunError(
            f"no episode of the certificate has the seed {seed}; psyco counterexamples lists seeds, and --episode "
            "takes the number of an episode"
        )
    return seeds.index(seed)


def run_of_certificate(path: Path) -> Path:
    """Return the run folder that a certificate lies in."""
    for folder in (path.parent, path.parent.parent):
        if is_run(folder):
            return folder
    raise RunError(
        f"{path} is a certificate, and its policy is not beside it: give the policy too, certificate={str(path)!r} "
        f"(POLICY --certificate {path})"
    )


def _certificate_origin(certificate: Certificate, policy: AnyPolicy) -> dict[str, Any]:
    """Return seed, stream and block of the episodes of a certificate; raise for a certificate of another policy."""
    if certificate.policy != policy.digest:
        raise RunError(
            f"the certificate is about another policy: sha256:{certificate.policy}, and this one is {policy.digest}"
        )
    stream = Stream.CERTIFY if certificate.stream == "certify" else Stream.VERIFY
    return {"seed": certificate.seed, "stream": stream, "block": certificate.seed_block or 0}


def _judge(requirement: Requirement | None, domain: Domain) -> Callable[[Signals], str]:
    """Return a function to `violated, decided at step 7` from an episode; empty text if there is no verdict."""
    if requirement is None:
        return lambda path: ""
    monitor = Monitor(requirement, horizon=domain.horizon, counters=counters_of(domain))

    def judge(path: Signals) -> str:
        verdict = episode_verdict(monitor, path) if monitor.signals <= path.keys() else None
        return f"{verdict[0].name.lower()}, decided at step {verdict[1]}" if verdict else ""

    return judge


def _made_folder(folder: str | Path) -> Path:
    """Create the folder if needed."""
    where = Path(folder)
    try:
        where.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"cannot make the folder {where}: {error.strerror}") from None
    return where
