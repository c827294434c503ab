"""Learning for a family of environments: does a policy meet its bound in 95% of them, and what does that cost?

`python -m benchmarks.robust dance cartpole --seeds 20-24`. For each seed a policy is learned in the single domain, in
the family (`--robust mean`) and for its worst environments (`--robust cvar:0.2`), with equal budgets and settings. Then
each gets a certificate about 95% of the environments of the family. Finished rows are kept in `build/robust.jsonl`, so
that an interrupted benchmark goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psyco

RESULTS = Path("build/robust.jsonl")
VARIANTS = ("single domain", "mean", "cvar:0.2")


@dataclass(frozen=True)
class Case:
    """A family, and a bound on the probability of a formula in 95% of its environments."""

    domain: str
    vary: dict[str, Any]
    bound: str  # P>=p
    formula: str
    budget: dict[str, int]
    parameters: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)  # of the learner
    max_episodes: int = 100_000  # of a certificate
    averaged: int = 4_000  # episodes of the return and the satisfied share over the family

    def requirement(self, share: str = "") -> str:
        """Return the requirement, with a share of environments or without."""
        return f"{self.bound}{share} [ {self.formula} ] & C>=0.98"


CASES = {
    "dance": Case(
        "particle-dance",
        {"max_speed*": (0.7, 1.3), "max_acceleration*": (0.7, 1.3)},
        "P>=0.85",
        "G (distance >= 0.1 | collisions <= 1)",
        {"episodes": 60_000},
        options={"margin": 0.5},
    ),
    # CartPole computes `polemass_length` from the length of its pole, so both have one factor. The nominal half length
    # of the pole is 0.5.
    "cartpole": Case(
        "gymnax:CartPole-v1",
        {"length*,polemass_length*": (0.6, 2.4), "gravity": (8, 12)},
        "P>=0.9",
        "G (abs(obs[0]) <= 0.5 & abs(obs[2]) <= 0.2)",
        {"episodes": 40_000},
        {"horizon": 200},
        options={"margin": 0.8},
        max_episodes=40_000,
    ),
    # Steps of a simulator that is not compiled are dear.
    "cheetah": Case(
        "HalfCheetah-v5",
        {"model.body_mass*,model.body_inertia*": (0.8, 1.2)},
        "P>=0.9",
        "G (count(info.x_velocity > 1) <= 10)",
        {"steps": 200_000},
        {"horizon": 100},
        max_episodes=10_000,
        averaged=400,
    ),
}


def run(case: Case, variant: str, seed: int) -> dict[str, Any]:
    """Learn and certify one policy; return the row of the table."""
    began = time.perf_counter()
    single = psyco.make(case.domain, **case.parameters)
    family = psyco.vary(single, case.vary)
    learned_in = single if variant == VARIANTS[0] else family
    robust = "mean" if variant == VARIANTS[0] else variant
    # One candidate, the last policy: a selection by return would choose the least careful one.
    settings = psyco.Settings(candidates=1, robust=robust, options=case.options)
    result = psyco.synthesize(learned_in, case.requirement(), seed=seed, settings=settings, **case.budget)
    learned = time.perf_counter() - began
    certificate = psyco.verify(
        result.policy, family, case.requirement(" in 95% of environments"), seed=seed, max_episodes=case.max_episodes
    )
    (finding,) = certificate.findings
    average = psyco.verify(result.policy, family, f"P=? [ {case.formula} ]", seed=seed, max_episodes=case.averaged)
    return {
        "verdict": certificate.verdict.name,
        "environments": finding.environments,
        "good": finding.good,
        "bad": finding.bad,
        "episodes": certificate.episodes,
        "lower": finding.lower,
        "return": average.mean_return,
        "satisfied": average.answers[0].mean,
        "learning_seconds": round(learned, 1),
    }


def known_rows() -> dict[tuple[str, str, int], dict[str, Any]]:
    """Return the finished rows by case, variant and seed."""
    if not RESULTS.exists():
        return {}
    rows = map(json.loads, RESULTS.read_text().splitlines())
    return {(row["case"], row["variant"], row["seed"]): row for row in rows}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", default=["dance", "cartpole"])
    parser.add_argument("--seeds", default="20-24")
    given = parser.parse_args(arguments)
    first, _, last = given.seeds.partition("-")
    RESULTS.parent.mkdir(exist_ok=True)
    for name in given.cases:
        for seed in range(int(first), int(last or first) + 1):
            for variant in VARIANTS:
                row = known_rows().get((name, variant, seed))
                if row is None:
                    row = {"case": name, "variant": variant, "seed": seed} | run(CASES[name], variant, seed)
                    with RESULTS.open("a") as file:
                        file.write(json.dumps(row) + "\n")
                print(
                    f"| {name} | {seed} | {variant} | {row['verdict']} | {row['good']} of {row['environments']} | "
                    f"{row['bad']} | {row['episodes']:,} | {row['satisfied']:.3f} | {row['return']:.2f} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
