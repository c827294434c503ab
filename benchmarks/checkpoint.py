"""What a device run pays for its folder: the time spent on checkpoints and on metrics, against the whole run.

Measured from within, since the difference of two runs' times drowns in noise at this size.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from psyco._src.runs import writer
from psyco._src.runs.config import Config
from psyco._src.runs.execute import execute
from psyco._src.runs.session import build_problem, start_run
from psyco._src.runs.settings import Settings

LIMIT = 0.03  # of a run's time for its checkpoints
CONFIG = Config(
    "particle-dance",
    "P>=0.85 [ G (distance >= 0.1 | collisions <= 1) ] & C>=0.98",
    settings=Settings(learner="snes"),
)


def main() -> None:
    keeper = writer.RunWriter
    original = {"rows": keeper.rows, "save": keeper.save}
    spent = dict.fromkeys(original, 0.0)
    try:
        for name, method in original.items():
            setattr(keeper, name, _timed(spent, name, method))
        with tempfile.TemporaryDirectory() as folder:
            _run(Path(folder) / "warm", writer.CHECKPOINT_EVERY)  # compiles
            print("  checkpoints        run  checkpoints         metrics")
            for label, every in {"by default": writer.CHECKPOINT_EVERY, "all the time": 0.0}.items():
                spent.update(dict.fromkeys(original, 0.0))
                whole = _run(Path(folder) / label.replace(" ", "-"), every)
                saving = spent["save"]
                metrics = spent["rows"]
                kept = f"  (limit {LIMIT:.0%}: {'kept' if saving / whole < LIMIT else 'MISSED'})" if every else ""
                print(
                    f"  {label:12} {whole:7.2f}s  {saving:5.3f}s {saving / whole:5.1%}"
                    f"  {metrics:6.3f}s {metrics / whole:5.1%}{kept}"
                )
    finally:
        for name, method in original.items():
            setattr(keeper, name, method)


def _timed(spent: dict[str, float], name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    def call(*arguments: Any) -> Any:
        began = time.perf_counter()
        try:
            return method(*arguments)
        finally:
            spent[name] += time.perf_counter() - began

    return call


def _run(folder: Path, every: float) -> float:
    began = time.perf_counter()
    with start_run(folder, CONFIG, build_problem(CONFIG)) as session:
        execute(session, checkpoint_every=every)
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
