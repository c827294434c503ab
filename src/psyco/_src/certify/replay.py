"""Repeat a certificate: the same policy, episodes and test must give the same counts, verdict and guarantee."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from typing import Any

from psyco._src.certify.certificate import Certificate, Look
from psyco._src.certify.verify import verify
from psyco._src.domain.base import Domain
from psyco._src.domain.catalogue import Description, remake
from psyco._src.domain.trust import NOBODY
from psyco._src.errors import PsycoError, RunError
from psyco._src.policy.foreign import AnyPolicy
from psyco._src.rollout.execution import HERE, Execution
from psyco._src.spec.parse import parse

# What a repetition may differ in: when and with which versions it was made.
CIRCUMSTANCES = ("issued", "versions", "checksum")


def replay(
    text: str,
    policy: AnyPolicy,
    *,
    origin: str = "the certificate",
    domain: Domain | None = None,
    execution: Execution = HERE,
    trust: Collection[str] = NOBODY,
) -> list[str]:
    """Everything in which a certificate's text differs from its repetition; empty if all of it matches.

    Only the look that the certificate is about is repeated; looks at other policies are checked for consistency.

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
    if claimed.policy != policy.digest:
        differences.append(
            f"policy: the certificate is about sha256:{claimed.policy}, this one is sha256:{policy.digest}"
        )
    try:
        domain = domain or remake(Description(claimed.domain, claimed.parameters), trust)
        repeated = _repeat(claimed, policy, domain, execution)
    except (PsycoError, TypeError, ValueError, AttributeError) as error:  # a forged file may hold anything
        raise RunError(f"{origin} cannot be repeated: {error}") from error
    for path, said, found in _compare(json.loads(text), json.loads(repeated.to_json())):
        foreign = path[-1] == "policy" and claimed.policy != policy.digest  # said once, above
        if path[0] not in CIRCUMSTANCES and not foreign:
            name = "requirement, " * (path[0] == "tree") + ".".join(map(str, path))
            differences.append(f"{name}: the certificate says {said}, the repetition gives {found}")
    if not differences:
        try:
            Certificate.from_json(text, origin=origin)
        except RunError:
            differences.append(
                "checksum: the file was changed after it was issued, in nothing that a repetition shows"
            )
    return differences


def _repeat(claimed: Certificate, policy: AnyPolicy, domain: Domain, execution: Execution) -> Certificate:
    """The certificate's own look again, with the other looks as they are claimed."""
    own = claimed.block or 0
    if not own < len(claimed.looks):
        raise RunError(f"it is about look {own + 1}, but lists only {len(claimed.looks)} looks")
    earlier = claimed.looks[:own]
    certificate = verify(
        policy, domain, parse(claimed.requirement), method=claimed.method, options=claimed.options,
        max_episodes=claimed.max_episodes or 1, seed=claimed.seed or 0, execution=execution, share=claimed.share,
        after=_after(claimed, earlier), issued=claimed.issued,
    )  # fmt: skip
    return certificate.with_looks((*certificate.looks, *claimed.looks[own + 1 :]))


def _after(claimed: Certificate, earlier: tuple[Look, ...]) -> Certificate | None:
    return claimed.with_looks(earlier) if earlier else None


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
