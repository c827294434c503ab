"""Counterexamples: the episodes of a certificate that violate its requirement, played again and explained."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import Any

import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from psyco._src.core.errors import PsycoError, RunError
from psyco._src.core.files import read_bytes
from psyco._src.core.wording import plural
from psyco._src.envs.base import Domain, counters_of, for_requirement
from psyco._src.envs.family import format_values, member_parameters
from psyco._src.envs.gym_env import GymDomain
from psyco._src.envs.registry import TRUST_NOTHING, DomainDescription, describe, make_from_description
from psyco._src.envs.variants import is_family
from psyco._src.logic.ast import Constraint, Expectation, ProbabilityBound, Requirement
from psyco._src.logic.batch_monitor import compile_monitor
from psyco._src.logic.explanation import Explanation, explain, margin
from psyco._src.logic.parser import parse
from psyco._src.logic.runtime_monitor import Monitor, replay_episode
from psyco._src.policies.external import AnyPolicy
from psyco._src.rollout.episodes import Stream, episode_keys, episode_seeds, member_numbers, stream_key
from psyco._src.rollout.execution import IN_PROCESS, Execution
from psyco._src.rollout.record import record_signals
from psyco._src.verification.certificate import Certificate, plain_data
from psyco._src.verification.episode_notes import EpisodeNotes, bound_of, note_episodes
from psyco._src.verification.episode_stream import is_rate
from psyco._src.verification.findings import Finding
from psyco._src.verification.outcomes import outcomes_digest
from psyco._src.verification.recorded_traces import read_signals, read_traces

Path = dict[str, NDArray[Any]]  # the signals of an episode, [n+1] or [n+1, size]
# The smallest number of episodes that are played again to rank them, in compiled domains and elsewhere.
RANKED_COMPILED, RANKED = 100, 20
PLAYED_AT_ONCE = 25


@dataclass(frozen=True, eq=False)
class Counterexample:
    """One episode of a certificate, played again."""

    constraint: Constraint | Expectation
    episode: int  # its number in the certificate, from 0
    seed: int | None  # of its environment; None for a recorded episode
    violates: bool | None  # None: an expected value, about which no single episode decides
    decided: int | None  # the step at which its verdict was decided
    cost: float | None  # how far it is from satisfying, as learning measures it
    margin: float | None  # the distance from the bound that decides, as a fraction of it; below 0 where it satisfies
    value: float | None  # of an expected value
    explanation: Explanation | None = field(repr=False)
    signals: Path = field(repr=False)
    remark: str = ""
    film: bytes | None = field(default=None, repr=False)
    film_type: str = ""  # media type of the film: image/gif, video/mp4 or video/webm
    environment: Mapping[str, float] | None = None  # parameters of its member of a family

    @property
    def steps(self) -> int:
        """Number of steps of the episode."""
        return len(self.signals["step"]) - 1

    @property
    def reason(self) -> str:
        """Why it has its verdict: which subformulas are true or false at which steps."""
        if self.explanation is None:
            return self.remark
        holds = {row.formula: row.holds for row in self.explanation.rows}
        parts = []
        for leaf, where in self.explanation.deciding.items():
            for value in (False, True):
                steps = np.flatnonzero(where & (holds[leaf] == value)).tolist()
                if steps:
                    parts.append((steps[0], f"{leaf} is {str(value).lower()} at {_steps(steps)}"))
        return "; ".join(text for _, text in sorted(parts)) or "its length decides, whatever happens in it"

    @property
    def outcome(self) -> str:
        """Its outcome in a few words."""
        if self.violates is None:
            return f"value {self.value:.6g}"
        return "violates" if self.violates else "satisfies, a close call"

    def to_json(self) -> dict[str, Any]:
        """Return plain data, without signals and film."""
        cells = self.explanation.cells if self.explanation else []
        return {
            "constraint": str(self.constraint), "episode": self.episode, "seed": self.seed,
            "violates": self.violates, "decided": self.decided, "steps": self.steps,
            "cost": _finite(self.cost), "margin": _finite(self.margin), "value": _finite(self.value),
            "reason": self.reason, "deciding": [[str(leaf), step] for leaf, step in cells],
        } | ({} if self.environment is None else {"environment": dict(self.environment)})  # fmt: skip


@dataclass(frozen=True, eq=False)
class Counterexamples(Sequence[Counterexample]):
    """The worst episodes of a certificate, by constraint, the worst first."""

    certificate: Certificate
    requirement: Requirement
    episodes: tuple[Counterexample, ...]
    remarks: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.episodes)

    def __getitem__(self, index: Any) -> Any:
        return self.episodes[index]

    def __repr__(self) -> str:
        violating = sum(each.violates is True for each in self)
        return f"<Counterexamples: {plural(len(self), 'episode')}, of which {violating} violate>"

    @property
    def by_constraint(self) -> list[tuple[Constraint | Expectation, list[Counterexample]]]:
        """The episodes of each constraint."""
        return [(stated, [e for e in self if e.constraint is stated]) for stated in self.requirement.constraints]

    @property
    def summaries(self) -> list[str]:
        """One sentence per constraint."""
        return [self._summary(k) for k in range(len(self.certificate.findings))]

    def _summary(self, k: int) -> str:
        finding = self.certificate.findings[k]
        if not isinstance(finding, Finding):
            return "No single episode decides about an expected value: these have the worst values."
        violating = finding.satisfied if bound_of(self.requirement, k)[1].negated else finding.violated
        if not violating:
            return f"None of the {plural(finding.episodes, 'episode')} violates; these came closest."
        return f"{violating:,} of {plural(finding.episodes, 'episode')} {'violates' if violating == 1 else 'violate'}."

    def __str__(self) -> str:
        lines = list(self.remarks)
        for (stated, own), summary in zip(self.by_constraint, self.summaries, strict=True):
            lines += [str(stated), f"  {summary}"]
            for each in own:
                seed = "" if each.seed is None else f", seed {each.seed}"
                decided = "" if each.decided is None else f", decided at step {each.decided} of {each.steps}"
                lines += [f"  episode {each.episode:,}{seed}: {each.outcome}{decided}"]
                lines += [f"    {each.reason}"] * bool(each.reason)
                if each.environment is not None:
                    lines += [f"    in the environment with {format_values(each.environment)}"]
        return "\n".join(lines)

    def to_json(self) -> str:
        """Return everything but signals and films as JSON."""
        content = {"remarks": self.remarks, "episodes": [each.to_json() for each in self]}
        return json.dumps(content, indent=2, allow_nan=False) + "\n"

    def _repr_html_(self) -> str:
        from psyco._src.verification.counterexamples_html import counterexamples_html

        return counterexamples_html(self)


def _steps(steps: list[int]) -> str:
    """Return steps in words: `step 3`, `steps 1, 4 to 9`."""
    runs: list[list[int]] = []
    for step in steps:
        if runs and step == runs[-1][-1] + 1:
            runs[-1] = [runs[-1][0], step]
        else:
            runs.append([step])
    texts = [" to ".join(map(str, run)) for run in runs]
    shown = [*texts[:5], "..."] if len(texts) > 6 else texts
    return f"{'step' if len(steps) == 1 else 'steps'} {', '.join(shown)}"


def _finite(value: float | None) -> float | None:
    return value if value is None or math.isfinite(value) else None


# ---- episodes of a policy, and recorded ones --------------------------------------------------------------------


@dataclass(frozen=True)
class EpisodePlayer:
    """Plays episodes of a certificate again, by their numbers."""

    record: Callable[[list[int]], list[Path]]
    seeds: Callable[[list[int]], list[int | None]]
    horizon: int | None
    counters: tuple[str, ...] = ()
    ranked: int = RANKED
    recorded: bool = False
    environments: Callable[[list[int]], list[Mapping[str, float] | None]] = lambda episodes: [None] * len(episodes)


def policy_player(
    certificate: Certificate, policy: AnyPolicy, domain: Domain, execution: Execution = IN_PROCESS
) -> EpisodePlayer:
    """Return a player of the episodes of a policy.

    Args:
        certificate: the certificate of the policy.
        policy: the policy that acts in them.
        domain: where it acts.
        execution: where a Gymnasium environment is stepped.
    """
    if certificate.policy != policy.digest:
        raise RunError(
            f"the certificate is about another policy: sha256:{certificate.policy}, and this one is {policy.digest}"
        )
    if isinstance(domain, GymDomain) and not domain.seeded:
        raise RunError(
            f"{domain.name} does not repeat an episode under its seed (seeded=False), so the episodes of its "
            "certificate cannot be played again"
        )
    key, requirement = certificate_key(certificate), parse(certificate.requirement)
    monitor = compile_monitor([bound.formula for bound in requirement.probability_bounds],
                              measured=[each.subject for each in requirement.measured])  # fmt: skip

    def keys(episodes: list[int]) -> Any:
        return episode_keys(key, jnp.array(episodes, jnp.uint32), 1)  # one for each

    def record(episodes: list[int]) -> list[Path]:
        # A compiled domain has batches of one size, so that it is compiled once.
        size = len(episodes) if isinstance(domain, GymDomain) else PLAYED_AT_ONCE
        theta = np.broadcast_to(policy.theta, (size, policy.theta.size))
        paths: list[Path] = []
        for first in range(0, len(episodes), max(size, 1)):
            filled = np.resize(episodes[first : first + size], size).tolist()
            played = record_signals(domain, policy.network, theta, keys(filled), None, execution, monitor)
            paths += map(dict, played)
        return paths[: len(episodes)]

    def environments(episodes: list[int]) -> list[Mapping[str, float] | None]:
        if not is_family(domain):
            return [None] * len(episodes)
        return [member_parameters(domain, number) for number in member_numbers(keys(episodes))]

    return EpisodePlayer(
        record, lambda episodes: list(episode_seeds(keys(episodes))), domain.horizon, counters_of(domain),
        RANKED if isinstance(domain, GymDomain) else RANKED_COMPILED, environments=environments,
    )  # fmt: skip


def certificate_key(certificate: Certificate) -> Any:
    """Return the random key of a certificate's episodes."""
    if certificate.seed is None or str(certificate.stream).upper() not in Stream.__members__:
        raise RunError("the certificate names no random stream of its episodes, so they cannot be played again")
    return stream_key(certificate.seed, Stream[str(certificate.stream).upper()], certificate.seed_block or 0)


def trace_player(certificate: Certificate, data: bytes, origin: str) -> EpisodePlayer:
    """Return a player of recorded traces, which must be those of the certificate."""
    requirement = parse(certificate.requirement)
    judged = read_traces(data, requirement, origin=origin, horizon=certificate.horizon, cut="violated")
    if outcomes_digest([column[: certificate.max_episodes] for column in judged.columns]) != certificate.outcomes:
        raise RunError(f"{origin} holds other episodes than the certificate: their outcomes have another hash")
    findings: Sequence[Any] = certificate.findings
    known = len(findings) == len(requirement.constraints)
    if not known or note_episodes(requirement, judged.columns, findings) != certificate.episode_notes:
        raise RunError(f"the certificate was changed: the violating episodes that it lists are not those of {origin}")
    named = Monitor(requirement).signals | {"step"}
    paths = read_signals(data, named, origin)
    order = judged.order.positions or range(len(paths))

    def record(episodes: list[int]) -> list[Path]:
        return [paths[order[episode]] for episode in episodes]

    return EpisodePlayer(record, lambda episodes: [None] * len(episodes), certificate.horizon, recorded=True)


def find_player(
    certificate: Certificate,
    policy: AnyPolicy | None,
    domain: Domain | None = None,
    traces: str | FilePath | None = None,
    trust: Collection[str] = TRUST_NOTHING,
    execution: Execution = IN_PROCESS,
) -> tuple[EpisodePlayer, Domain | None]:
    """Return a player of a certificate's episodes, and their domain if it is about a policy.

    Args:
        certificate: the certificate.
        policy: the certified policy; None for recorded traces.
        domain: where it acts; default: as described in the certificate.
        traces: file of the recorded traces.
        trust: code that the certificate may name.
        execution: where a Gymnasium environment is stepped.
    """
    if certificate.policy is None:
        if traces is None:
            raise RunError(
                "the certificate is about recorded episodes, and holds none of their signals: give the file of the "
                "traces (traces=..., --traces FILE); of outcomes alone there is nothing to show"
            )
        return trace_player(certificate, read_bytes(traces, "recording"), str(traces)), None
    if traces is not None:
        raise RunError("the certificate is about a policy: leave out the traces, its episodes are played again")
    if policy is None:
        raise RunError("the certificate does not contain its policy: give the policy too")
    if domain is None:
        try:
            described = DomainDescription(str(certificate.domain), certificate.parameters)
            domain = make_from_description(described, trust)
        except (PsycoError, TypeError, ValueError, AttributeError, LookupError, ArithmeticError) as error:
            # A forged file may hold anything.
            raise RunError(f"the domain of the certificate cannot be made: {error}") from error
    else:
        name, given = describe(for_requirement(domain, parse(certificate.requirement)))
        if (name, plain_data(given)) != (certificate.domain, certificate.parameters):
            raise RunError(
                f"the episodes of the certificate were played in another domain, {certificate.domain} with "
                f"{certificate.parameters}; this one is {name} with {plain_data(given)}"
            )
    policy.check(domain)
    return policy_player(certificate, policy, domain, execution), domain


# ---- the worst episodes -----------------------------------------------------------------------------------------


def find_counterexamples(
    certificate: Certificate, player: EpisodePlayer, *, worst: int, remarks: Sequence[str] = ()
) -> Counterexamples:
    """Play the noted episodes of a certificate again, rank them by how far they are from satisfying, explain the worst.

    Args:
        certificate: the certificate with its notes.
        player: plays its episodes.
        worst: number of episodes per constraint.
        remarks: for the reader.
    """
    requirement = parse(certificate.requirement)
    if not requirement.constraints:
        raise RunError("the certificate answers questions only: without a constraint no episode can violate one")
    found: list[Counterexample] = []
    for k, (stated, finding) in enumerate(zip(requirement.constraints, certificate.findings, strict=True)):
        notes = certificate.episode_notes[k]
        if isinstance(stated, Constraint) and not isinstance(finding, Finding):
            raise RunError(
                f"{stated} is about a share of environments, whose certificate keeps no list of episodes: verify the "
                "same bound without `in ...% of environments`, and show the episodes of that certificate"
            )
        if isinstance(stated, Constraint):
            found += _worst_outcomes(requirement, k, notes, finding.episodes, player, worst)
        else:
            found += _worst_values(stated, notes.closest_episodes[:worst], player)
    return Counterexamples(certificate, requirement, tuple(found), tuple(remarks))


def _worst_outcomes(
    requirement: Requirement, k: int, notes: EpisodeNotes, episodes: int, player: EpisodePlayer, worst: int
) -> Iterator[Counterexample]:
    """Yield the worst violating episodes and, if there are fewer, the closest calls."""
    _, bound = bound_of(requirement, k)
    count, violating = max(worst, player.ranked), notes.violating_episodes
    candidates = violating[:count]
    if len(violating) < worst:
        listed = set(violating)
        others = notes.closest_episodes or [i for i in range(min(episodes, count + len(listed))) if i not in listed]
        candidates += others[:count]
    paths = dict(zip(candidates, player.record(candidates), strict=True)) if candidates else {}
    ranks = {}
    for episode, path in paths.items():
        violates, cost = _cost(bound, path)
        if violates != (episode in violating) and not player.recorded:
            raise RunError(
                f"episode {episode:,} of the certificate {'violates' if violates else 'satisfies'} when it is played "
                "again, and did not when it was counted: the environment does not repeat an episode under its seed, or "
                "the certificate was changed (psyco verify --replay)"
            )
        ranks[episode] = (episode in violating, cost, margin(bound.formula, path))
    shown = sorted(ranks, key=lambda episode: (*(-x for x in ranks[episode]), episode))[:worst]
    monitor = Monitor(requirement, horizon=player.horizon, counters=player.counters)
    for episode, seed, where in zip(shown, player.seeds(shown), player.environments(shown), strict=True):
        path, (violates, cost, own_margin) = paths[episode], ranks[episode]
        decided, why = max(replay_episode(monitor, path)[k].decided or 0, 0), explain(bound.formula, path)
        cut = why.satisfied == violates  # of a recording
        yield Counterexample(
            requirement.constraints[k], episode, seed, violates, None if cut else decided, cost, own_margin, None,
            None if cut else why, path, "it has no end, so it counts as violated" if cut else "", environment=where,
        )  # fmt: skip


def _cost(bound: ProbabilityBound, path: Path) -> tuple[bool, float]:
    """Return whether an episode violates, and its shaping cost, or its cost where there is none."""
    monitor = compile_monitor([bound.formula])
    used = {name: path[name] for name in monitor.signals} or {"step": path["step"]}
    satisfied, cost = monitor(used)
    shaping = monitor.step_shaping_costs(used)
    return not satisfied[0], float(cost[0] if shaping is None else shaping.sum())


def _worst_values(stated: Expectation, episodes: list[int], player: EpisodePlayer) -> Iterator[Counterexample]:
    measured = compile_monitor([], measured=[stated.subject])
    played = player.seeds(episodes), player.record(episodes), player.environments(episodes)
    for episode, seed, path, where in zip(episodes, *played, strict=True):
        used = {name: path[name] for name in measured.signals} or {"step": path["step"]}
        total = float(np.asarray(measured.measure(used).value)[0])
        value = total / max(len(path["step"]) - 1, 1) if is_rate(stated) else total
        yield Counterexample(stated, episode, seed, None, None, None, None, value, None, path, environment=where)
