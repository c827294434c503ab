"""Guards on Particle Dance: how much of an unconstrained policy's return survives, at which probability."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psyco
from psyco._src.verification.findings import ShareEstimate

REQUIREMENT = psyco.make("particle-dance").requirement  # type: ignore[attr-defined]
FURTHER = 1000  # episodes for shares and returns, after each verdict
AHEAD, LIMITS = (3, 5), (0.01, 0.05, 0.2)  # steps that a risk looks ahead, and when it hands over


def main() -> None:
    unconstrained = psyco.synthesize("particle-dance", "Rmax=? [ C ]").policy
    cautious = psyco.synthesize("particle-dance", "P>=0.95 [ G distance >= 0.1 ] & C>=0.98").policy
    learned = psyco.synthesize("particle-dance", REQUIREMENT).policy
    print(f"  {REQUIREMENT}; shares and returns of {FURTHER:,} further episodes")
    _show("unconstrained", unconstrained)
    _show("cautious, the fallback", cautious)
    _show("learned for the requirement", learned)
    for name, rule in _rules(unconstrained):
        guard = psyco.Guard(unconstrained, cautious, REQUIREMENT, when=rule, horizon=50, counters=["collisions"])
        _show(f"guarded by {name}", guard)


def _rules(policy: psyco.Policy) -> Iterator[tuple[str, Any]]:
    yield "slack", "slack"
    for within in AHEAD:
        risk = psyco.learn_risk(policy, "particle-dance", REQUIREMENT, within=within)
        print("  " + str(risk).replace("\n", "\n  "))
        for limit in LIMITS:
            yield f"risk within {within} steps >= {limit:g}", risk.with_limit(limit)


def _show(name: str, policy: Any) -> None:
    """One row of the table: verdict, share with its interval, return, and what the fallback did."""
    certificate = psyco.verify(policy, "particle-dance", REQUIREMENT, estimate=FURTHER)
    assert certificate.estimate is not None
    estimate, share = certificate.estimate, certificate.estimate.constraints[0]
    assert isinstance(share, ShareEstimate)
    acted = next((note for note in certificate.notes if note.startswith("The fallback acted")), "")
    print(
        f"  {name:34} {certificate.verdict.name:10} {share.satisfied / estimate.episodes:.3f} "
        f"[{share.lower:.3f}, {share.upper:.3f}]  "
        f"return {estimate.mean_return:6.2f} ± {estimate.return_standard_error:.2f}  "
        f"{acted.partition('and in ')[2].removesuffix('.')}",
        flush=True,
    )


if __name__ == "__main__":
    main()
