"""Replay a certificate: the same policy, episodes and tests must give the same counts, verdict and guarantee."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Collection, Iterator
from functools import partial
from typing import Any, NamedTuple

from psyco._src.core.errors import PsycoError, RunError
from psyco._src.envs.base import Domain
from psyco._src.envs.registry import TRUST_NOTHING, DomainDescription, make_from_description
from psyco._src.envs.variants import adversary_of
from psyco._src.logic.parser import parse
from psyco._src.policies.external import AnyPolicy, with_version
from psyco._src.rollout.episodes import Stream
from psyco._src.rollout.execution import IN_PROCESS, Execution
from psyco._src.verification.certificate import (
    BASELINE_NOTE,
    CHANGED_CODE_NOTE,
    ENDED_PROCESS_NOTE,
    Certificate,
    Look,
)
from psyco._src.verification.ledger import IGNORED_LOOKS_NOTE, Ledger, certificate_entries
from psyco._src.verification.methods import METHODS
from psyco._src.verification.verifier import verify

# Fields in which a replay may differ.
NOT_COMPARED = ("issued", "versions", "checksum")
KEPT_NOTES = (IGNORED_LOOKS_NOTE, CHANGED_CODE_NOTE, BASELINE_NOTE)  # starts of notes that no replay can show
MAX_REPLAY_EPISODES = 10_000_000  # of one look


class Replay(NamedTuple):
    """The comparison of a certificate with its replay."""

    differences: tuple[str, ...]  # empty if everything that was compared matches
    not_compared: tuple[str, ...]  # what a replay cannot show

    @property
    def matches(self) -> bool:
        """Whether the replay gave everything that the certificate says."""
        return not self.differences


def replay(
    text: str,
    policy: AnyPolicy,
    *,
    origin: str = "the certificate",
    domain: Domain | None = None,
    execution: Execution = IN_PROCESS,
    trust: Collection[str] = TRUST_NOTHING,
) -> Replay:
    """Repeat every look of a certificate at this policy, and compare all fields.

    Looks at other policies cannot be repeated; the result names them.

    Args:
        text: the certificate, as JSON.
        policy: the certified policy.
        origin: name of the certificate in messages.
        domain: the domain of the policy; by default as described in the certificate.
        execution: where episodes are made.
        trust: code that the certificate may name.
    """
    claimed = Certificate.from_json(text, origin=origin, strict=False)
    if claimed.policy is None or claimed.domain is None:
        raise RunError(f"{origin} is about recorded outcomes; verify those again with --outcomes")
    differences = []
    if policy.version is None and policy.kind != "name":  # a hash of content needs no version
        policy = with_version(policy, claimed.policy_version)
    if claimed.policy != policy.digest:
        differences.append(
            f"policy: the certificate is about sha256:{claimed.policy}, this one is sha256:{policy.digest}"
        )
    try:
        domain = domain or make_from_description(DomainDescription(claimed.domain, claimed.parameters), trust)
        repeated, others = _repeat(claimed, policy, domain, execution)
    except (PsycoError, TypeError, ValueError, AttributeError, LookupError, ArithmeticError) as error:
        # A forged file may hold anything.
        raise RunError(f"{origin} cannot be repeated: {error}") from error
    for path, claim, result in _compare(*map(_without_ends, (text, repeated.to_json()))):
        reported = path[-1] == "policy" and claimed.policy != policy.digest  # once, above
        if path[0] not in NOT_COMPARED and not reported:
            name = "requirement, " * (path[0] == "syntax_tree") + ".".join(map(str, path))
            differences.append(f"{name}: the certificate says {claim}, the repetition gives {result}")
    if not differences:
        try:
            Certificate.from_json(text, origin=origin)
        except RunError:
            differences.append("checksum: the file was changed after it was issued, in nothing that a repetition shows")
    looks = [f"look {i + 1}, {why}" for i, why in others.items()] + ["looks that it does not list"]
    # The maximum of an open-ended method changes nothing before it is reached.
    unused = METHODS[claimed.method].open_ended and claimed.episodes < (claimed.max_episodes or 0)
    cap = [f"max_episodes beyond the {claimed.episodes:,} that were needed"] * unused
    baselines = ["the returns of baselines"] * any(note.startswith(BASELINE_NOTE) for note in claimed.notes)
    ended = ["processes that were ended"] * any(note.startswith(ENDED_PROCESS_NOTE) for note in claimed.notes)
    what = ("when it was issued", "the versions of packages", *baselines, *ended, *cap, *looks)
    return Replay(tuple(differences), what)


def _repeat(
    claimed: Certificate, policy: AnyPolicy, domain: Domain, execution: Execution
) -> tuple[Certificate, dict[int, str]]:
    """Return the certificate with all looks at this policy repeated, and why other looks could not be."""
    estimate = claimed.estimate.episodes if claimed.estimate else None
    answered = max((answer.episodes for answer in claimed.answers), default=0)
    if max(estimate or 0, answered, *(look.episodes for look in claimed.looks)) > MAX_REPLAY_EPISODES:
        raise RunError(f"it claims more than {MAX_REPLAY_EPISODES:,} episodes")
    blocks = [look.seed_block for look in claimed.looks]
    if claimed.seed_block not in blocks or len(set(blocks)) < len(blocks):
        raise RunError(f"it is about block {claimed.seed_block}, and lists looks at the blocks {blocks}")
    entries = certificate_entries(claimed)
    stream = Stream[str(claimed.stream).upper()]
    certificate, looks, others = claimed, list(claimed.looks), {}
    for i, look in enumerate(claimed.looks):
        if reason := _why_not_repeatable(look, claimed, policy):
            others[i] = reason
            continue
        # A ledger that has come as far as this look, with its share of the error and its block.
        ledger = Ledger(entries[:i], partial(_same, look.share), stream, look.seed_block)
        # Answers and estimate are known of the last look only.
        itself = look.seed_block == claimed.seed_block
        tested = most = _max_episodes(look, claimed)
        if itself and claimed.answers:  # they go on after the tests
            most = min(look.max_episodes or 1, MAX_REPLAY_EPISODES)
        again = verify(
            policy, domain, parse(claimed.requirement), method=claimed.method, options=claimed.options,
            max_episodes=most, test_episodes=tested if claimed.findings else most, seed=look.seed or 0,
            execution=execution, ledger=ledger, issued=claimed.issued,
            notes=[note for note in claimed.notes if note.startswith(KEPT_NOTES)],
            estimate=estimate if itself else None, width=_widths(claimed),
        )  # fmt: skip
        looks[i] = dataclasses.replace(again.looks[-1], max_episodes=look.max_episodes)
        if itself:
            certificate = dataclasses.replace(again, max_episodes=look.max_episodes)
    return certificate.with_looks(tuple(looks)), others


def _max_episodes(look: Look, claimed: Certificate) -> int:
    """Return the maximum number of episodes; for an open-ended method, no more than were claimed."""
    cap = look.max_episodes or 1
    return min(cap, look.episodes or 1) if METHODS[claimed.method].open_ended else cap


def _widths(claimed: Certificate) -> list[float] | None:
    """Return the widths that the answers had to reach; None: none had to."""
    return [answer.width for answer in claimed.answers if answer.width is not None] or None


def _same(share: float, look: int) -> float:
    return share


def _why_not_repeatable(look: Look, claimed: Certificate, policy: AnyPolicy) -> str:
    """Return why a look cannot be repeated; empty if it can, as can the certificate's own."""
    if look.seed_block == claimed.seed_block:
        return ""
    if look.policy != policy.digest:
        return "which was at another policy"
    if adversary_of(claimed.parameters):
        return "which may have been against another adversary"
    return "which was begun and never finished" if not look.episodes else ""


def _without_ends(text: str) -> Any:
    """Return the content of a certificate without notes on processes that were ended, which is no part of its seeds."""
    content = json.loads(text)
    content["notes"] = [note for note in content["notes"] if not note.startswith(ENDED_PROCESS_NOTE)]
    return content


def _compare(a: Any, b: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], Any, Any]]:
    """Yield path and values of every leaf at which two JSON values differ."""
    if isinstance(a, dict) and isinstance(b, dict):
        for key in sorted(a.keys() | b.keys()):
            yield from _compare(a.get(key), b.get(key), (*path, key))
    elif isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        for i, (x, y) in enumerate(zip(a, b, strict=True)):
            yield from _compare(x, y, (*path, i))
    elif a != b:
        yield path, _short(a), _short(b)


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
