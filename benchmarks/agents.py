"""Best responses and alternating learning on Obstacle Run with an opponent, beside the exact values."""

from __future__ import annotations

import time
from collections.abc import Sequence

import psyco

GAME = psyco.make("obstacle-run", opponent=True)
REQUIREMENT = "P>=0.9 [ G (!caught | collisions <= 1) ] & C>=0.98"
RESPONSE_SEEDS = (521, 522, 523, 524, 525)
SMALL = psyco.make("obstacle-run", opponent=True, grid=3, horizon=6)
TURNS = ((6_000, 2, (511, 512, 513, 514)), (20_000, 4, (531, 532, 533)))  # episodes of each policy, rounds, seeds


def main() -> None:
    """Print a table of best responses, and tables of learning in turn."""
    _responses()
    for episodes, rounds, seeds in TURNS:
        _turns(episodes, rounds, seeds)


def _responses() -> None:
    """Print a row per seed: a joint policy, and the response of the opponent that is learned against it."""
    print("| seed | without | learned response | best response | reached | value of the game | against it | seconds |")
    print("|---|---|---|---|---|---|---|---|")
    for seed in RESPONSE_SEEDS:
        joint = psyco.synthesize(GAME, REQUIREMENT, episodes=20_000, seed=seed)
        began = time.perf_counter()
        found = psyco.exploit(joint.policy, GAME, REQUIREMENT, agent="opponent", seed=seed, exact=True)
        assert found.exact is not None
        without, learned, best, game = found.exact
        (finding,) = found.certificate.findings
        print(
            f"| {seed} | {without:.4f} | {learned:.4f} | {best:.4f} | {learned / best:.1%} | {game:.4f} | "
            f"{finding.verdict.name}, P {finding.interval} | {time.perf_counter() - began:.0f} |",
            flush=True,
        )


def _turns(episodes: int, rounds: int, seeds: Sequence[int]) -> None:
    """Print a row per seed: the exact best response to the joint policy of each round, on a grid of 3."""
    heads = " | ".join(f"round {number}" for number in range(rounds + 1))
    print(f"\n| seed | {heads} | value of the game | chosen | return before | after | verdict | seconds |")
    print("|---" * (rounds + 8) + "|")
    for seed in seeds:
        settings = psyco.Settings(policies="separate", hidden=(64, 64))
        joint = psyco.synthesize(SMALL, REQUIREMENT, learner="ppo", episodes=episodes, seed=seed, settings=settings)
        began = time.perf_counter()
        found = psyco.train_against(
            joint.policy, SMALL, REQUIREMENT, agent="opponent", rounds=rounds, episodes=episodes, policy_learner="ppo",
            policy_episodes=episodes, seed=seed, exact=True,
        )  # fmt: skip
        exact = [each.exact for each in found.rounds if each.exact is not None]
        first, last = found.rounds[0], found.rounds[found.chosen]
        print(
            f"| {seed} | {' | '.join(f'{each.worst:.4f}' for each in exact)} | {exact[0].game:.4f} | {found.chosen} | "
            f"{first.worst.mean_return:.2f} | {last.worst.mean_return:.2f} | {found.verdict.name} | "
            f"{time.perf_counter() - began:.0f} |",
            flush=True,
        )
