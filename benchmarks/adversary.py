"""Learned adversaries on Obstacle Run beside the exact worst case, and policies that learn against them."""

from __future__ import annotations

import time

import psyco

REQUIREMENT = "P>=0.9 [ G (!caught | collisions <= 1) ] & C>=0.98"
SHARES = (0.2, 0.5)
SEEDS = (10, 11, 12, 13, 14)
TRAINED_SHARE, ROUNDS = 0.5, 2


def main() -> None:
    """Print a table of adversaries against one policy, and one of policies that learn against theirs."""
    result = psyco.synthesize("obstacle-run", REQUIREMENT, learner="ppo", episodes=20_000, seed=10)
    print(f"policy sha256:{result.policy.digest[:16]}, {result.certificate.verdict.name}")
    _attacks(result.policy)
    _training()


def _attacks(policy: psyco.Policy) -> None:
    """Print a table with a row per share of the random draws and seed of the adversary."""
    print("| share | seed | without | learned | worst | reached | against it | seconds |")
    print("|---|---|---|---|---|---|---|---|")
    for share in SHARES:
        for seed in SEEDS:
            began = time.perf_counter()
            found = psyco.attack(policy, None, REQUIREMENT, adversary=share, seed=seed, exact=True)
            assert found.exact is not None
            (finding,) = found.certificate.findings
            without, learned, worst, _ = found.exact
            print(
                f"| {share} | {seed} | {without:.4f} | {learned:.4f} | {worst:.4f} | {learned / worst:.1%} | "
                f"{finding.verdict.name}, {finding.lower:.3f} to {finding.upper:.3f} | "
                f"{time.perf_counter() - began:.0f} |",
                flush=True,
            )


def _training() -> None:
    """Print a table with a row per seed: the exact worst case before and after learning against adversaries."""
    print("\n| seed | worst before | worst after | of the best policy | return before | after | verdict | seconds |")
    print("|---|---|---|---|---|---|---|---|")
    for seed in SEEDS:
        began = time.perf_counter()
        start = psyco.synthesize("obstacle-run", REQUIREMENT, learner="ppo", episodes=20_000, seed=seed)
        found = psyco.train_against(
            start.policy, None, REQUIREMENT, adversary=TRAINED_SHARE, rounds=ROUNDS, policy_learner="safe-es",
            seed=seed, exact=True,
        )  # fmt: skip
        first, last = found.rounds[0], found.rounds[found.chosen]
        assert first.exact is not None
        assert last.exact is not None
        print(
            f"| {seed} | {first.exact.worst:.4f} | {last.exact.worst:.4f} | {last.exact.game:.4f} | "
            f"{first.worst.mean_return:.2f} | {last.worst.mean_return:.2f} | {found.verdict.name} | "
            f"{time.perf_counter() - began:.0f} |",
            flush=True,
        )
