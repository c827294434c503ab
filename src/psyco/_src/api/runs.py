"""What a run left behind: read it, show it, take its policy elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from psyco._src.api.argument_check import verb
from psyco._src.api.coerce import AnyDomain, PolicyLike, as_actor, find_policy, find_run
from psyco._src.core import atomic_io
from psyco._src.core.errors import DomainError, RunError
from psyco._src.envs.base import Domain, counters_of
from psyco._src.envs.gym_env import GymDomain
from psyco._src.envs.registry import BUILT_IN
from psyco._src.learners.metrics import Metrics
from psyco._src.logic.parser import parse
from psyco._src.logic.requirement import AnyRequirement, as_requirement
from psyco._src.logic.runtime_monitor import Monitor, decision
from psyco._src.policies.c_export import c_files
from psyco._src.policies.external import AnyPolicy
from psyco._src.policies.guard import Guard
from psyco._src.policies.onnx_export import export_onnx
from psyco._src.policies.serialization import Policy
from psyco._src.rollout.record import Signals, record_many
from psyco._src.runs.store import Run


@verb
def open_run(folder: str | Path) -> Run:
    """A run as it stands in its folder; nothing is made, imported or changed for that.

    Args:
        folder: of the run.
    """
    return find_run(folder)


@verb
def metrics(run: Run | str | Path) -> Metrics:
    """How a run learned, one row per generation: `psyco.metrics("runs/dance").plot()` draws it.

    Args:
        run: the run, or its folder; it may still be going on.
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
    """All signals along one episode: arrays `[n+1]`, or `[n+1, size]` for vectors, where n is the episode's own length.

    Args:
        policy: what acts, as in `verify`.
        domain: where it acts; by default where it was learned.
        parameters: of the domain, over its own.
        seed: the episodes are a function of it; no other purpose uses them.
        episode: which of them.
        trust: code (`module:name`) that files name and that may be imported, and files that may run code themselves.
    """
    found, where = as_actor(policy, domain, parameters, trust)
    return record_many(where, found, seed=seed, first=episode, count=1)[0]


@verb
def report(run: Run | str | Path, out: str | Path | None = None) -> Path:
    """Write one self-contained HTML page about a run; returns where it is.

    Args:
        run: the run, or its folder.
        out: the page; by default `report.html` in the run's folder.
    """
    from psyco._src.reports.run_page import run_page

    found = find_run(run)
    path = found.folder / "report.html" if out is None else Path(out)
    atomic_io.write(path, run_page(found).encode())
    return path


@verb
def export(policy: PolicyLike, path: str | Path) -> float:
    """Write a policy as ONNX, scaling and action range inside, and run it beside the policy.

    Args:
        policy: a policy of ours, its file, a run or its folder.
        path: the file.

    Returns:
        The largest difference between an action of the file and of the policy, relative to the range of actions.
    """
    return export_onnx(_own(find_policy(policy)[0]), path)


@verb
def export_c(
    policy: PolicyLike,
    folder: str | Path,
    *,
    requirement: AnyRequirement | None = None,
    horizon: int | None = None,
    counters: Collection[str] | None = None,
) -> list[Path]:
    """Write a policy and the monitor of its requirement as C99 without dependencies; returns the files.

    They are a header, a source and a small test program. A formula whose monitor is too large for a table is refused.

    Args:
        policy: a policy of ours, its file, a run or its folder.
        folder: where the files go.
        requirement: what episodes are watched against; by default what its run was made for.
        horizon: the longest episode, in steps; by default that of the domain it was learned in, if a file says so.
        counters: signals that never fall; by default those that a domain of ours has.
    """
    anything, own = find_policy(policy)
    found = _own(anything)
    wanted = requirement if requirement is not None else own and parse(own)
    declared = counters_of(BUILT_IN[found.domain]) if found.domain in BUILT_IN else ()
    files = c_files(
        found,
        None if wanted is None else as_requirement(wanted),
        horizon=found.parameters.get("horizon") if horizon is None else horizon,
        counters=declared if counters is None else counters,
    )
    where = _made_folder(folder)
    for name, text in files.items():
        atomic_io.write(where / name, text.encode("ascii"))
    return [where / name for name in files]


def _own(policy: AnyPolicy) -> Policy:
    """Refuse what cannot be exported."""
    if isinstance(policy, Guard):
        raise RunError(
            f"{policy.source} is a guard, with a memory and two policies: export each of them, with the monitor "
            "(psyco export --c), and let your program choose"
        )
    if not isinstance(policy, Policy):
        raise RunError(f"{policy.source} is a policy of others; only PSyCo's own policies can be exported")
    return policy


@verb
def render(
    policy: PolicyLike,
    folder: str | Path,
    *,
    domain: AnyDomain | None = None,
    parameters: Mapping[str, Any] | None = None,
    episodes: int = 3,
    animation: bool = True,
    seed: int = 0,
    trust: Collection[str] = (),
    on_remark: Callable[[str], None] = lambda text: None,
) -> list[Path]:
    """Draw sample trajectories of a policy, and animate one; returns the files.

    Of a run, which knows its requirement, the picture says what each episode came to, and when that was decided.

    Of a Gymnasium environment that can draw itself (`rgb_array`) the animation is a film.

    Args:
        policy: what acts, as in `verify`.
        folder: where the pictures go.
        domain: where it acts; by default where it was learned.
        parameters: of the domain, over its own.
        episodes: how many to draw side by side.
        animation: also write an animation of the first episode.
        seed: the episodes are a function of it.
        trust: code (`module:name`) that files name and that may be imported, and files that may run code themselves.
        on_remark: called with a sentence where an environment gives no pictures.
    """
    from psyco._src.reports.trajectory import animate_trajectory, draw_trajectory
    from psyco._src.reports.video import Video, animate_film, film

    own, requirement = find_policy(policy, trust)
    found, where_it_acts = as_actor(own, domain, parameters, trust)
    paths = record_many(where_it_acts, found, seed=seed, count=episodes)
    shown: Video | None = None
    if isinstance(where_it_acts, GymDomain):
        try:
            shown = film(where_it_acts, found, seed=seed)
            paths[0] = dict(shown.signals)
        except DomainError as error:
            on_remark(f"drawing signals instead: {error}")
    where = _made_folder(folder)
    files = [where / "trajectory.png"]
    outcomes = _outcomes(requirement, where_it_acts, paths) if requirement else []
    draw_trajectory(where_it_acts, paths, files[0], shown.frames if shown else (), outcomes)
    if animation:
        files.append(where / "trajectory.gif")
        if shown:
            animate_film(shown, files[1])
        else:
            animate_trajectory(where_it_acts, paths[0], files[1])
    return files


def _outcomes(requirement: str, domain: Domain, paths: Sequence[Signals]) -> list[str]:
    """`violated, decided at step 7`, for each episode; nothing where it lacks the signals that are spoken of."""
    monitor = Monitor(parse(requirement), horizon=domain.horizon, counters=counters_of(domain))
    if not all(monitor.signals <= path.keys() for path in paths):
        return []
    found = [decision(monitor, path) for path in paths]
    return [f"{each[0].name.lower()}, decided at step {each[1]}" if each else "" for each in found]


def _made_folder(folder: str | Path) -> Path:
    """The folder, made if it is not there."""
    where = Path(folder)
    try:
        where.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"cannot make the folder {where}: {error.strerror}") from None
    return where
