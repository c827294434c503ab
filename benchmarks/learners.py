"""Which learner ends with a certified policy, how good it is, and how fast it learns: `make bench-learners`.

Every row is one learner on one domain over many seeds; together they are a study in `studies/learners`, with a page
of its own. All episodes that have a say in which policy is returned count as training episodes: those of the offspring,
those of the mean policy, and those of the selection among candidates. The certificate (`anytime`) and the figures below
it come from fresh episodes that nothing else has seen; on finite domains return and probability are exact. Nothing was
tuned on the seeds that are used here.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from scipy import stats

import psyco
from psyco._src.envs.base import Domain, FiniteDomain
from psyco._src.exact.solver import evaluate
from psyco._src.exact.unfold import policy_actions, unfold
from psyco._src.logic.ast import Requirement
from psyco._src.logic.parser import parse
from psyco._src.rollout.episodes import Stream, stream_key
from psyco._src.rollout.sampler import make_sampler
from psyco._src.runs.settings import Settings
from psyco._src.verification.episode_stream import constraint_outcomes, sample_episodes

FIRST_SEED = 1000
FRESH = 4000  # episodes that estimate return and satisfaction of each returned policy
CARTPOLE = "P>=0.95 [ G (abs(obs[0]) <= 1) ] & C>=0.98"
PENDULUM = "P>=0.9 [ G (abs(action[0]) <= 1.2) ] & C>=0.98"  # swinging up would rather use 2


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    domain: str
    learner: str
    episodes: int  # all that the learner sees, the selection's among them
    requirement: str = ""
    settings: dict[str, Any] = field(default_factory=dict)
    fresh: int = FRESH

    @property
    def training(self) -> int:
        """What the selection leaves for learning."""
        own = Settings(**{k: v for k, v in self.settings.items() if k in ("candidates", "selection_episodes")})
        return self.episodes - (own.candidates * own.selection_episodes if own.candidates > 1 else 0)


class Outcome(NamedTuple):
    """How one seed ended."""

    certified: bool
    mean_return: float
    satisfied: float
    seconds: float  # of learning and certification; the first seeds of a row also compile
    steps: float  # environment steps of learning per second
    curve: list[float]  # mean return of training episodes over consecutive parts of learning


FEW = {"candidates": 4, "selection_episodes": 100}  # episodes of Gymnasium environments are dear
LAST = {"candidates": 1}  # no selection: the policy that learning ends with, as in the paper
TABLE = {
    "dance": [
        Row("particle-dance", "snes", 60_000, settings=LAST),
        Row("particle-dance", "snes", 60_000),
        Row("particle-dance", "safe-es", 60_000),
        Row("particle-dance", "ppo", 60_000),
    ],
    "dance-long": [Row("particle-dance", "safe-es", 600_000)],
    "run": [
        Row("obstacle-run", "snes", 20_000, settings=LAST),
        Row("obstacle-run", "snes", 20_000),
        Row("obstacle-run", "safe-es", 20_000),
        Row("obstacle-run", "ppo", 20_000),
    ],
    "cartpole": [Row("CartPole-v1", learner, 2_000, CARTPOLE, FEW, 200) for learner in ("snes", "safe-es", "ppo")],
    "pendulum": [Row("Pendulum-v1", learner, 2_000, PENDULUM, FEW, 200) for learner in ("snes", "safe-es", "ppo")],
}


def run(rows: Sequence[tuple[str, Row]], seeds: range, folder: Path) -> list[list[Outcome]]:
    """The outcomes of every row, one per seed; what the study in that folder has computed before is kept.

    Args:
        rows: what a row is called in the study, and the row; rows of one domain have names of their own.
        seeds: of each row.
        folder: of the study.
    """
    content = {
        "title": "Which learner ends with a certified policy?",
        "seeds": list(seeds),
        "settings": {"verify_every": 0},
        "cells": [_cell(name, row) for name, row in rows],
    }
    study = psyco.study(content, folder, on_progress=_tell)
    if not study.complete:
        sys.exit("\n".join(f"{name}: {error}" for name, error in study.failed.items()))
    print(f"{study.page} shows all of it", file=sys.stderr)
    cells = iter(study.outcomes)  # in the order of the rows, each with all seeds
    return [[_outcome(row, next(cells)) for _ in seeds] for _, row in rows]


def _cell(name: str, row: Row) -> dict[str, Any]:
    """A row as a study has it: settings by their names, options of the learner with a dot."""
    own = {each.name for each in fields(Settings)}
    settings = {key if key in own else f"learner.{key}": value for key, value in row.settings.items()}
    requirement = row.requirement or psyco.make(row.domain).requirement  # type: ignore[attr-defined]
    p = max(demand.p_req for demand in parse(requirement).probability_bounds)
    return {
        "label": name,
        "domain": row.domain,
        "requirement": {"name": f"p {p:g}", "text": requirement},
        "learner": row.learner,
        "episodes": row.training,
        **settings,
    }


def _outcome(row: Row, cell: Any) -> Outcome:
    run: psyco.Run = cell.run
    domain = psyco.make(row.domain)
    requirement = parse(cell.cell.config.requirement)
    mean_return, satisfied = value(row, domain, requirement, run.policy, cell.cell.seed)
    returns = run.metrics["return"]
    return Outcome(
        cell.certified,
        mean_return,
        satisfied,
        cell.times.seconds,
        run.steps / cell.times.seconds if cell.times.seconds else float("nan"),
        [float(part.mean()) for part in np.array_split(returns, min(100, len(returns)))],
    )


def _tell(progress: psyco.StudyProgress) -> None:
    done, total = progress.count("finished"), len(progress.cells)
    if sys.stderr.isatty():
        left = progress.seconds_left
        print(f"\r{done} of {total} runs", f"{left:.0f} s left  " if left else "", end="", file=sys.stderr)


def value(row: Row, domain: Domain, requirement: Requirement, policy: psyco.Policy, seed: int) -> tuple[float, float]:
    """Mean return and satisfied share of a policy: exact on finite domains, else from fresh episodes."""
    if isinstance(domain, FiniteDomain):
        exact = evaluate(unfold(domain, [c.formula for c in requirement.constraints], policy_actions(policy, domain)))
        return exact.expected_return, min(exact.probabilities)
    sampler = make_sampler(domain, policy.network, requirement)
    fresh = list(sample_episodes(sampler, jnp.asarray(policy.theta), stream_key(seed, Stream.RECORD), row.fresh))
    satisfied = np.concatenate([constraint_outcomes(requirement, np.asarray(e.satisfied)) for e in fresh])
    return float(np.concatenate([e.returns for e in fresh]).mean()), float(satisfied.all(axis=1).mean())


def called(row: Row) -> str:
    """A learner, and which of its policies is returned."""
    return f"{row.learner}, {'last policy' if row.settings.get('candidates') == 1 else 'best candidate'}"


def line(row: Row, outcomes: list[Outcome], name: str = "") -> str:
    """One line of the table, each figure with its 95% interval over seeds."""
    good = [o for o in outcomes if o.certified]
    share = stats.binomtest(len(good), len(outcomes)).proportion_ci()
    returns = [o.mean_return for o in good]
    cells = [
        row.domain,
        name or called(row),
        f"{row.episodes:,}",
        f"{len(good)}/{len(outcomes)} ({share.low:.0%} to {share.high:.0%})",
        interval(returns),
        interval([o.mean_return for o in outcomes]),
        f"{np.mean([o.satisfied for o in outcomes]):.3f} (lowest {min(o.satisfied for o in outcomes):.3f})",
        f"{np.median([o.seconds for o in outcomes]):.1f}",
        f"{np.median([o.steps for o in outcomes]) / 1e6:.2f}",
    ]
    return "| " + " | ".join(cells) + " |"


def interval(values: list[float]) -> str:
    """The mean and its 95% t interval."""
    if not values:
        return "–"
    if len(values) == 1:
        return f"{values[0]:.2f}"
    half = stats.t.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / np.sqrt(len(values))
    return f"{np.mean(values):.2f} ± {half:.2f}"


def plot(kept: list[tuple[Row, list[Outcome]]], path: Path) -> None:
    """Return against episodes, one line per seed; a filled circle at its end is a certified policy, a cross is none."""
    import matplotlib.pyplot as plt
    from matplotlib.lines import Line2D

    domains = list(dict.fromkeys(row.domain for row, _ in kept))
    rows = -(-len(domains) // 2)
    figure, axes = plt.subplots(rows, 2, figsize=(11, 4 * rows), squeeze=False, layout="constrained")
    colours = {"snes": "#D55E00", "safe-es": "#0072B2", "ppo": "#009E73"}
    for axis, domain in zip(axes.flat, domains, strict=False):
        mine = [(r, o) for r, o in kept if r.domain == domain and r.settings.get("candidates") != 1]
        for row, outcomes in mine:
            for outcome in outcomes:
                episodes = np.linspace(0, row.training, len(outcome.curve) + 1)[1:]
                axis.plot(episodes, outcome.curve, color=colours[row.learner], alpha=0.35, lw=0.8)
                marker = "o" if outcome.certified else "x"
                axis.plot(row.episodes, outcome.mean_return, marker, color=colours[row.learner], ms=5)
        axis.set(title=domain, xlabel="training episodes", ylabel="return")
        if len({row.episodes for row, _ in mine}) > 1:
            axis.set_xscale("log")
        learners = dict.fromkeys(row.learner for row, _ in mine)
        axis.legend([Line2D([], [], color=colours[name]) for name in learners], learners, fontsize=8)
    figure.savefig(path, dpi=80)


HEADER = (
    "| domain | learner | episodes | certified | return of certified | return of all | satisfied | s | Msteps/s |\n"
    "|---|---|---|---|---|---|---|---|---|"
)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"one of {', '.join(TABLE)}; default: all")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--learner", action="append", help="only rows of this learner; may be repeated")
    parser.add_argument("--out", type=Path, default=Path("studies/learners"), help="the study's folder")
    parser.add_argument("--plot", type=Path, help="draw return against episodes into this file (svg, png)")
    chosen = parser.parse_args(arguments)
    parts = chosen.parts or list(TABLE)
    if unknown := set(parts) - set(TABLE):
        parser.error(f"unknown part {', '.join(unknown)}; there are: {', '.join(TABLE)}")
    wanted = [row for part in parts for row in TABLE[part] if row.learner in (chosen.learner or [row.learner])]
    names = [called(row) + f", {row.episodes:,} episodes" * (row.episodes > 60_000) for row in wanted]
    seeds = range(FIRST_SEED, FIRST_SEED + chosen.seeds)
    outcomes = run(list(zip(names, wanted, strict=True)), seeds, chosen.out)
    kept = list(zip(wanted, outcomes, strict=True))
    print(HEADER)
    for row, found in kept:
        print(line(row, found))
    if chosen.plot:
        plot(kept, chosen.plot)


if __name__ == "__main__":
    main()
