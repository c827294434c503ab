"""Joint against independent learning of several agents, and each run with partners from other seeds.

`python -m benchmarks.crossplay learning belief --seeds 301-305`, then `partners --seeds 301-303`. Runs are kept in a
folder (`--out`), so that an interrupted benchmark goes on where it was.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

import psyco

DANCE = "P>=0.85 [ G (distance >= 0.1 | collisions <= 1) ] & C>=0.98"
SHARED, SEPARATE = {"policies": "shared"}, {"policies": "separate"}
INDEPENDENT = {"learning": "independent"}
WINDOWS = (10, 100, 1000, np.inf)  # generations in the belief; the last one forgets nothing
HIDDEN = {"safe-es": 16, "ppo": 32}  # units, as in the tables of docs/agents.md
BOUND = 0.85  # of the probability in `DANCE`


def learn(seed: int, folder: Path, **settings: Any) -> psyco.Run:
    """Return a finished run, from its folder if there is one."""
    if not (folder / "config.toml").exists():
        return psyco.start(
            "particle-dance", DANCE, folder, parameters={"agents": 3}, episodes=60_000, seed=seed,
            settings=psyco.Settings(**settings),
        )  # fmt: skip
    run = psyco.open_run(folder)
    return run if run.certificate is not None else psyco.resume(folder)


def learning(learners: Sequence[str], seeds: Sequence[int], out: Path) -> None:
    """Print what each way of learning reaches."""
    print("| learner | learning | certified | satisfied share | return of each seed |\n|---|---|---|---|---|")
    for learner in learners:
        for name, changes in (("joint, shared", SHARED), ("joint", SEPARATE), ("independent", INDEPENDENT)):
            runs = [
                learn(
                    seed,
                    out / f"dance-{learner}-{name.replace(', ', '-')}-{seed}",
                    learner=learner,
                    hidden=HIDDEN[learner],
                    **changes,
                )
                for seed in seeds
            ]
            print(f"| {learner} | {name} | {_outcome(runs)} |", flush=True)


def _outcome(runs: Sequence[psyco.Run]) -> str:
    certified = sum(run.certificate.verdict is psyco.Verdict.SATISFIED for run in runs)
    shares = ", ".join(f"{run.certificate.findings[0].share:.3f}" for run in runs)
    returns = ", ".join(f"{run.certificate.mean_return:.0f}" for run in runs)
    return f"{certified} of {len(runs)} | {shares} | {returns}"


def belief(learners: Sequence[str], seeds: Sequence[int], out: Path) -> None:
    """Print how often a belief that remembers more or fewer generations is wrong; runs are those of `learning`.

    With `control=integral` the belief decides nothing while a run learns, so those of other windows follow from the
    outcomes of its check episodes.
    """
    print("| learner | learning | generations | surely holds, and is wrong | surely fails, and is wrong |")
    print("|---" * 5 + "|")
    for learner in learners:
        for name in ("joint-shared", "joint", "independent"):
            runs = [psyco.open_run(out / f"dance-{learner}-{name}-{seed}") for seed in seeds]
            for window in WINDOWS:
                rates = " | ".join(_errors(runs, window))
                print(
                    f"| {learner} | {name} | {'all' if window == WINDOWS[-1] else window} | {rates} |",
                    flush=True,
                )


def _errors(runs: Sequence[psyco.Run], window: float) -> list[str]:
    """Return how often a belief is as sure as required of what a check of 100 fresh episodes refutes.

    Counted are the checks of the second half of learning, of all runs.
    """
    sure, rows = [], []
    for run in runs:
        table = run.metrics
        c_sat = _beliefs(run, window)
        if window == run.config.settings.options["belief_window"]:
            np.testing.assert_allclose(c_sat, table["c_sat"], atol=2e-3)
        checked = ~np.isnan(table["verified_share"]) & (np.arange(table.rows) >= table.rows // 2)
        sure.append(c_sat[checked])
        rows.append(table["verified_share"][checked] >= BOUND)
    c_sat, met = np.concatenate(sure), np.concatenate(rows)
    return [
        f"{np.sum(wrong)} of {np.sum(of)}"
        for of, wrong in ((c_sat >= 0.98, ~met[c_sat >= 0.98]), (c_sat <= 0.02, met[c_sat <= 0.02]))
    ]


def _beliefs(run: psyco.Run, window: float) -> np.ndarray:
    """Return c_sat after each generation for a belief with this window, from the outcomes of the checks."""
    checks = run.config.settings.options["checks"]
    counts, found = np.zeros(2), []
    for share in run.metrics["deployed_satisfied"]:
        counts = (1.0 - 1.0 / window) * counts + checks * np.array([share, 1.0 - share])
        found.append(stats.beta.sf(BOUND, *(counts + 1.0)))
    return np.array(found)


def partners(learners: Sequence[str], seeds: Sequence[int], out: Path) -> None:
    """Print what becomes of probability and return with partners of other seeds; runs are those of `learning`."""
    print("| learner | learning | agent of another seed | pairings | satisfied | violated | share | return |")
    print("|---" * 8 + "|")
    for learner in learners:
        for name in ("joint-shared", "joint", "independent"):
            folders = [out / f"dance-{learner}-{name}-{seed}" for seed in seeds]
            found = psyco.crossplay([str(folder) for folder in folders])
            count = len(folders)
            for other in (False, True):
                pairings = [found.pairings[i][j] for i in range(count) for j in range(count) if (i != j) == other]
                verdicts = [pairing.verdict.name for pairing in pairings]
                share = np.mean([pairing.findings[0].share for pairing in pairings])
                gain = np.mean([pairing.mean_return for pairing in pairings])
                print(
                    f"| {learner} | {name} | {'yes' if other else 'no'} | {len(pairings)} "
                    f"| {verdicts.count('SATISFIED')} | {verdicts.count('VIOLATED')} | {share:.3f} | {gain:.0f} |",
                    flush=True,
                )


PARTS: dict[str, Callable[[Sequence[str], Sequence[int], Path], None]] = {
    "learning": learning,
    "belief": belief,
    "partners": partners,
}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", default=list(PARTS), help=f"of {', '.join(PARTS)}; default: all")
    parser.add_argument("--learners", nargs="*", default=["safe-es", "ppo"])
    parser.add_argument("--seeds", default="301-305")
    parser.add_argument("--out", type=Path, default=Path("build/crossplay"))
    chosen = parser.parse_args(arguments)
    first, _, last = chosen.seeds.partition("-")
    seeds = range(int(first), int(last or first) + 1)
    for part in chosen.parts:
        PARTS[part](chosen.learners, seeds, chosen.out)


if __name__ == "__main__":
    main()
