"""Run all benchmarks, or those that are named: `python -m benchmarks speed startup`."""

from __future__ import annotations

import importlib
import os
import sys

# name -> what it shows; each is a module here with a function `main`.
BENCHMARKS = {
    "speed": "training steps per second against a plain NumPy loop and evosax",
    "scaling": "time and memory against episodes, population and horizon",
    "startup": "from the command line to the first generation, cold and cached",
}


def main() -> None:
    names = sys.argv[1:] or list(BENCHMARKS)
    for name in names:
        if name not in BENCHMARKS:
            sys.exit(f"no benchmark {name!r}; there are: {', '.join(BENCHMARKS)}")
    for name in names:
        print(f"\n== {name}: {BENCHMARKS[name]}", flush=True)
        importlib.import_module(f"benchmarks.{name}").main()


if __name__ == "__main__":
    # One thread on one core, for everything that is compared. Set before JAX is imported.
    os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    main()
