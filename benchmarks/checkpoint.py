"""What a device run pays for its folder: the time spent writing checkpoints and metrics, against the whole run.

Measured from within, since the difference of two runs' times drowns in noise at this size.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from psyco.run import session as sessions
from psyco.run.config import Config
from psyco.synthesis import Settings

LIMIT = 0.03
CONFIG = Config(
    "particle-dance",
    "P>=0.85 [ G (distance >= 0.1 | collisions <= 1) ] & C>=0.98",
    settings=Settings(learner="snes"),
)


def main() -> None:
    keeper = sessions._Keeper
    spent: dict[str, list[float]] = {}

    def timed(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            began = time.perf_counter()
            try:
                return method(*arguments)
            finally:
                spent.setdefault(name, []).append(time.perf_counter() - began)

        return call

    # `keep` appends metrics and calls `save` when it is time; a save that has nothing to write costs nothing.
    keep, write = keeper.keep, sessions.save_checkpoint
    keeper.keep = timed("keep", keep)  # type: ignore[method-assign]
    sessions.save_checkpoint = timed("save", write)
    try:
        with tempfile.TemporaryDirectory() as folder:
            _run(Path(folder) / "warm", sessions.CHECKPOINT_EVERY)  # compiles
            print("  checkpoints      run  writing  number   share")
            for label, every in {"by default": sessions.CHECKPOINT_EVERY, "all the time": 0.0}.items():
                spent.clear()
                whole = _run(Path(folder) / label.replace(" ", "-"), every)
                saves = spent.get("save", [])
                # The last save of a run comes after its last segment, outside of `keep`.
                writing = sum(spent["keep"]) + (saves[-1] if saves else 0.0)
                verdict = (
                    ""
                    if every == 0.0
                    else f"  (limit {LIMIT:.0%}: {'kept' if writing / whole < LIMIT else 'MISSED'})"
                )
                print(
                    f"  {label:12} {whole:7.2f}s {writing:7.3f}s  {len(saves):6}  {writing / whole:6.2%}{verdict}"
                )
    finally:
        keeper.keep, sessions.save_checkpoint = keep, write  # type: ignore[method-assign]


def _run(folder: Path, every: float) -> float:
    began = time.perf_counter()
    with sessions.start_run(folder, CONFIG) as session:
        sessions.execute(session, checkpoint_every=every)
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
