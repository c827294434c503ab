"""Run all benchmarks, or those that are named: `python -m benchmarks speed startup`."""

from __future__ import annotations

import importlib
import os
import sys

# name -> what it shows; each is a module here with a function `main`.
BENCHMARKS = {
    "speed": "training steps per second against a plain NumPy loop and evosax",
    "learner_speed": "training steps per second of each learner",
    "scaling": "time and memory against episodes, population and horizon",
    "learners": "certified share and return of each learner, 20 seeds (half an hour; not part of the default)",
    "ablation": "what each part of safe-es is worth, 10 seeds (an hour; not part of the default)",
    "terms": "what each term of the Lagrangian controller is worth to ppo, 5 seeds (an hour; not part of the default)",
    "small_spaces": "the learner table beside the optimum, on FrozenLake, CliffWalking, Taxi, Blackjack (ten minutes)",
    "exploration": "what held noise is worth to ppo and sac, 5 seeds (an hour; not part of the default)",
    "startup": "from the command line to the first generation, cold and cached",
    "host": "host rollouts of Gymnasium environments against a bare loop, and two workers against one",
    "pairs": "pairs of episodes until a new policy is shown to be better than an old one",
    "episodes": "episodes of an answer of a wanted width, and of a verdict, against other rules",
    "families": "episodes of a certificate about 95% of environments, where the truth is known exactly",
    "robust": "learning for a family of environments, 5 seeds (an hour; not part of the default)",
    "means": "episodes until a mean is shown, wrong verdicts at the limit, and the time for a million values",
    "deployment": "runtime and monitor beside rtamt, how soon a change is found, what a guard leaves of a return",
    "adversary": "learned adversaries on Obstacle Run beside the exact worst case, 5 seeds (ten minutes)",
    "agents": "best responses and learning in turn on Obstacle Run, beside exact values, 5 and 3 seeds (ten minutes)",
    "shield": "violations while learning with and without a shield, on Obstacle Run and, with QVBS=FOLDER, two models",
    "teams": "what three agents cost beside one; `python -m benchmarks.teams spread` learns simple_spread (an hour)",
    "crossplay": "joint and independent learning, and partners from other seeds (an hour; not part of the default)",
    "checkpoint": "what a device run pays for its checkpoints",
}
LONG = ("learners", "ablation", "terms", "exploration", "robust", "crossplay")


def main() -> None:
    names = sys.argv[1:] or [name for name in BENCHMARKS if name not in LONG]
    for name in names:
        if name not in BENCHMARKS:
            sys.exit(f"no benchmark {name!r}; there are: {', '.join(BENCHMARKS)}")
    for name in names:
        print(f"\n== {name}: {BENCHMARKS[name]}", flush=True)
        module = importlib.import_module(f"benchmarks.{name}")
        module.main([]) if name in LONG else module.main()


if __name__ == "__main__":
    # One thread on one core, for everything that is compared. Set before JAX is imported.
    os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    main()
