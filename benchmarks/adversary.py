"""Learned adversaries on Obstacle Run beside the exact worst case, and what an episode against them satisfies."""

from __future__ import annotations

import time

import psyco

REQUIREMENT = "P>=0.9 [ G (!caught | collisions <= 1) ] & C>=0.98"
SHARES = (0.2, 0.5)
SEEDS = (10, 11, 12, 13, 14)


def main() -> None:
    """Print a table with a row per share of the random draws and seed of the adversary."""
    result = psyco.synthesize("obstacle-run", REQUIREMENT, learner="ppo", episodes=20_000, seed=10)
    print(f"policy sha256:{result.policy.digest[:16]}, {result.certificate.verdict.name}")
    print("| share | seed | without | learned | worst | reached | against it | seconds |")
    print("|---|---|---|---|---|---|---|---|")
    for share in SHARES:
        for seed in SEEDS:
            began = time.perf_counter()
            found = psyco.attack(result.policy, None, REQUIREMENT, adversary=share, seed=seed, exact=True)
            assert found.exact is not None
            (finding,) = found.certificate.findings
            without, learned, worst = found.exact
            print(
                f"| {share} | {seed} | {without:.4f} | {learned:.4f} | {worst:.4f} | {learned / worst:.1%} | "
                f"{finding.verdict.name}, {finding.lower:.3f} to {finding.upper:.3f} | "
                f"{time.perf_counter() - began:.0f} |",
                flush=True,
            )
