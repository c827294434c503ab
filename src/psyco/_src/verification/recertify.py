"""Repeat a certificate: the same policy, episodes and test must give the same counts, verdict and guarantee."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Collection, Iterator
from functools import partial
from typing import Any, NamedTuple

from psyco._src.core.errors import PsycoError, RunError
from psyco._src.envs.base import Domain
from psyco._src.envs.registry import DomainDescription, remake
from psyco._src.envs.trust import NOBODY
from psyco._src.logic.parser import parse
from psyco._src.policies.external import AnyPolicy, with_version
from psyco._src.rollout.episodes import Stream
from psyco._src.rollout.execution import HERE, Execution
from psyco._src.verification.certificate import FIRST, Certificate, Look
from psyco._src.verification.ledger import IGNORED, Ledger, entries_of
from psyco._src.verification.methods import METHODS
from psyco._src.verification.verifier import verify

# What a repetition may differ in: when and with which versions it was made.
CIRCUMSTANCES = ("issued", "versions", "checksum")
# What the first version of certificates put in other words, or stated at another level or for one look alone.
REWORDED = ("statement", "lower", "upper", "wrongly_violated")

MOST = 10_000_000  # episodes of a look that is repeated


class Replay(NamedTuple):
    """How a certificate and its repetition compare."""

    differences: tuple[str, ...]  # empty if all that was compared matches
    not_compared: tuple[str, ...]  # what a repetition cannot show

    @property
    def matches(self) -> bool:
        """Whether the repetition gave everything that the certificate says."""
        return not self.differences


def replay(
    text: str,
    policy: AnyPolicy,
    *,
    origin: str = "the certificate",
    domain: Domain | None = None,
    execution: Execution = HERE,
    trust: Collection[str] = NOBODY,
) -> Replay:
    """Repeat every look of a certificate at this policy, and compare all of it.

    Looks at other policies cannot be repeated, only be checked for consistency; the result names them.

    Args:
        text: the certificate, as JSON.
        policy: what it is about.
        origin: what to call it in messages.
        domain: where the policy acts; by default what the certificate describes.
        execution: where episodes are made.
        trust: the code that the certificate may name.
    """
    claimed = Certificate.from_json(text, origin=origin, strict=False)
    if claimed.policy is None or claimed.domain is None:
        raise RunError(f"{origin} is about recorded outcomes; verify those again with --outcomes")
    differences = []
    if policy.version is None and policy.kind != "name":  # what was hashed needs no name
        policy = with_version(policy, claimed.policy_version)
    if claimed.policy != policy.digest:
        differences.append(
            f"policy: the certificate is about sha256:{claimed.policy}, this one is sha256:{policy.digest}"
        )
    try:
        domain = domain or remake(DomainDescription(claimed.domain, claimed.parameters), trust)
        repeated, others = _repeat(claimed, policy, domain, execution)
    except (PsycoError, TypeError, ValueError, AttributeError, LookupError, ArithmeticError) as error:
        # A forged file may hold anything.
        raise RunError(f"{origin} cannot be repeated: {error}") from error
    for path, said, found in _compare(json.loads(text), json.loads(repeated.to_json())):
        foreign = path[-1] == "policy" and claimed.policy != policy.digest  # said once, above
        reworded = claimed.format == FIRST and path[-1] in REWORDED and path[0] in ("findings", "guarantee")
        if path[0] not in CIRCUMSTANCES and not foreign and not reworded:
            name = "requirement, " * (path[0] == "tree") + ".".join(map(str, path))
            differences.append(f"{name}: the certificate says {said}, the repetition gives {found}")
    if not differences:
        try:
            Certificate.from_json(text, origin=origin)
        except RunError:
            differences.append(
                "checksum: the file was changed after it was issued, in nothing that a repetition shows"
            )
    looks = [f"look {i + 1}, {why}" for i, why in others.items()] + ["looks that it does not list"]
    words = ["the words and bounds of a certificate of version 1"] * (claimed.format == FIRST)
    # The cap of these methods changes nothing before it is reached.
    unused = METHODS[claimed.method].open_ended and claimed.episodes < (claimed.max_episodes or 0)
    cap = [f"max_episodes beyond the {claimed.episodes:,} that were needed"] * unused
    return Replay(
        tuple(differences), ("when it was issued", "the versions of packages", *cap, *words, *looks)
    )


def _repeat(
    claimed: Certificate, policy: AnyPolicy, domain: Domain, execution: Execution
) -> tuple[Certificate, dict[int, str]]:
    """The certificate again, with all looks at this policy made anew; and why the others could not be."""
    estimate = claimed.estimate.episodes if claimed.estimate else None
    answered = max((answer.episodes for answer in claimed.answers), default=0)
    if max(estimate or 0, answered, *(look.episodes for look in claimed.looks)) > MOST:
        raise RunError(f"it claims more than {MOST:,} episodes")
    blocks = [look.block for look in claimed.looks]
    if claimed.block not in blocks or len(set(blocks)) < len(blocks):
        raise RunError(f"it is about block {claimed.block}, and lists looks at the blocks {blocks}")
    entries = entries_of(claimed)
    stream = Stream[str(claimed.stream).upper()]
    certificate, looks, others = claimed, list(claimed.looks), {}
    for i, look in enumerate(claimed.looks):
        if reason := _beyond(look, claimed, policy):
            others[i] = reason
            continue
        # A ledger that has come as far as this look, and has its share to give and its block to take.
        ledger = Ledger(entries[:i], partial(_same, look.share), stream, look.block)
        itself = (
            look.block == claimed.block
        )  # and not an earlier one, whose answers and estimate nobody knows
        again = verify(
            policy, domain, parse(claimed.requirement), method=claimed.method, options=claimed.options,
            max_episodes=max(_cap(look, claimed), answered if itself else 0), seed=look.seed or 0, execution=execution,
            ledger=ledger, issued=claimed.issued, notes=[note for note in claimed.notes if note == IGNORED],
            estimate=estimate if itself else None, width=claimed.answers[0].width if claimed.answers else None,
        )  # fmt: skip
        looks[i] = dataclasses.replace(again.looks[-1], cap=look.cap)
        if itself:
            cap = claimed.max_episodes if look.cap is None else look.cap
            certificate = dataclasses.replace(again, max_episodes=cap)
    certificate = dataclasses.replace(certificate.with_looks(tuple(looks)), format=claimed.format)
    return certificate, others


def _cap(look: Look, claimed: Certificate) -> int:
    """So many episodes at most: where the cap plays no part in the test, no more than were claimed."""
    cap = (look.cap if look.cap is not None else claimed.max_episodes) or 1
    return min(cap, look.episodes or 1) if METHODS[claimed.method].open_ended else cap


def _same(share: float, look: int) -> float:
    return share


def _beyond(look: Look, claimed: Certificate, policy: AnyPolicy) -> str:
    """Why a look cannot be repeated; empty if it can. What the certificate itself is about always can."""
    if look.block == claimed.block:
        return ""
    if look.policy != policy.digest:
        return "which was at another policy"
    return "which was begun and never finished" if not look.episodes else ""


def _compare(
    said: Any, found: Any, path: tuple[str | int, ...] = ()
) -> Iterator[tuple[tuple[str | int, ...], Any, Any]]:
    """Every leaf at which two JSON values differ."""
    if isinstance(said, dict) and isinstance(found, dict):
        for key in sorted(said.keys() | found.keys()):
            yield from _compare(said.get(key), found.get(key), (*path, key))
    elif isinstance(said, list) and isinstance(found, list) and len(said) == len(found):
        for i, (a, b) in enumerate(zip(said, found, strict=True)):
            yield from _compare(a, b, (*path, i))
    elif said != found:
        yield path, _short(said), _short(found)


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
