"""The certificate: what was shown about which policy, how, and with which guarantee."""

from __future__ import annotations

import dataclasses
import json
import platform
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import numpy as np
from numpy.typing import NDArray

from psyco.domain.base import Domain, parameters
from psyco.foreign import AnyPolicy
from psyco.spec.formula import Requirement
from psyco.verification.base import Guarantee, Progress, Verdict
from psyco.verification.bayes import posterior_mass
from psyco.verification.methods import make_test
from psyco.version import __version__

FORMAT = "psyco-certificate-1"


@dataclass(frozen=True)
class Finding:
    """What was found about one constraint."""

    constraint: str  # as text
    name: str | None
    verdict: Verdict
    episodes: int
    satisfied: int  # episodes in which the formula held
    violated: int
    confidence: float  # posterior probability that the constraint holds (c_sat), from a uniform prior
    lower: float  # bounds for the true probability, in the sense of the guarantee
    upper: float
    guarantee: Guarantee

    @property
    def estimate(self) -> float:
        """The observed share."""
        return self.satisfied / self.episodes if self.episodes else float("nan")


@dataclass(frozen=True)
class Certificate:
    """What was shown. `print` gives a short block, `to_json` everything."""

    verdict: Verdict
    requirement: str
    findings: tuple[Finding, ...]
    episodes: int
    mean_return: float
    return_error: float  # standard error of that mean
    domain: str
    parameters: dict[str, Any]
    policy: str  # SHA-256 of the policy file
    method: str
    options: dict[str, Any]
    max_episodes: int
    seed: int
    versions: dict[str, str]

    def to_json(self) -> str:
        """All of it, as JSON."""
        content = dataclasses.asdict(self)
        content["verdict"] = self.verdict.name
        for finding, own in zip(content["findings"], self.findings, strict=True):
            finding["verdict"] = own.verdict.name
        return json.dumps({"format": FORMAT, **content}, indent=2, allow_nan=False, default=str) + "\n"

    def __str__(self) -> str:
        lines = [f"{self.verdict.name}: {self.verdict.value}"]
        for f in self.findings:
            lines += [
                f"  {f.constraint}",
                f"    {f.verdict.name} after {f.episodes:,} episodes: {f.satisfied:,} satisfied, {f.violated:,} violated"
                f" (share {f.estimate:.4f}, between {f.lower:.4f} and {f.upper:.4f})",
                f"    c_sat {f.confidence:.6f}",
            ]
        if self.episodes:
            lines += [f"  return {self.mean_return:.2f} ± {self.return_error:.2f} (mean ± standard error)"]
        lines += [
            f"  policy sha256:{self.policy[:16]} on {self.domain}, method {self.method}, seed {self.seed}",
        ]
        lines += [f"  {sentence}" for sentence in dict.fromkeys(f.guarantee.statement for f in self.findings)]
        return "\n".join(lines)


def certify(
    policy: AnyPolicy,
    domain: Domain,
    requirement: Requirement,
    verdict: Verdict,
    progress: list[Progress],
    returns: NDArray[np.float32],
    *,
    method: str,
    options: dict[str, Any],
    max_episodes: int,
    seed: int,
) -> Certificate:
    """Write down how a verification ended."""
    findings = []
    for constraint, p in zip(requirement.constraints, progress, strict=True):
        test = make_test(method, constraint, **options)
        lower, upper = test.bounds(p.counts)
        findings.append(
            Finding(
                constraint=str(constraint),
                name=constraint.name,
                verdict=p.verdict,
                episodes=p.episodes,
                satisfied=int(p.counts.satisfied),
                violated=int(p.counts.violated),
                confidence=float(posterior_mass(p.counts, constraint.lower, constraint.upper)),
                lower=lower,
                upper=upper,
                guarantee=test.guarantee,
            )
        )
    many = len(returns) > 1
    return Certificate(
        verdict=verdict,
        requirement=str(requirement),
        findings=tuple(findings),
        episodes=len(returns),
        mean_return=float(returns.mean(dtype=np.float64)) if len(returns) else 0.0,
        return_error=float(returns.std(ddof=1, dtype=np.float64) / np.sqrt(len(returns))) if many else 0.0,
        domain=domain.name,
        parameters=parameters(domain),
        policy=policy.digest,
        method=method,
        options=options,
        max_episodes=max_episodes,
        seed=seed,
        versions={"psyco": __version__, "jax": version("jax"), "python": platform.python_version()},
    )
