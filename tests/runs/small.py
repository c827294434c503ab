"""A run that takes a second, in this process and in processes of its own."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np

from psyco._src.core.provenance import package_versions
from psyco._src.learners.metrics import COLUMNS, Metrics
from psyco._src.runs.config import Config
from psyco._src.runs.settings import Settings
from psyco._src.runs.store import RunInfo

REQUIREMENT = "P>=0.85 [ G (distance >= 0.1 | collisions <= 1) ] & C>=0.9"
# 30 segments of 5 generations of 10 episodes.
SETTINGS = Settings(
    learner="snes",
    episodes=1500,
    verify_every=50,
    verify_episodes=50,
    max_episodes=100,
    hidden=4,
    options={"population": 10},
)
CONFIG = Config("particle-dance", REQUIREMENT, {"horizon": 5}, SETTINGS)
OUTCOME = (
    *("policy.safetensors", "metrics.csv", "certificates/0001.json"),
    *("certificate.json", "episodes.json", "looks.json"),
)


def begun(folder: Path) -> Path:
    """A run that has learned for three generations, written by hand: nothing is compiled for it."""
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text(CONFIG.to_toml())
    RunInfo(1_700_000_000, package_versions(), {"system": "none"}, {}).save(folder)
    numbers = {name: np.linspace(0.1, 0.9, 3) for name in COLUMNS}
    counts = {"generation": np.arange(3), "episodes": 10 * np.arange(1, 4), "verdict": np.full(3, "")}
    (folder / "metrics.csv").write_text(Metrics(numbers | counts).to_csv())
    return folder


def outcome(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in OUTCOME}


def environment(cache: Path | None = None) -> dict[str, str]:
    """Processes share a time for everything that has one, and their compiled code.

    Args:
        cache: of compiled code; None: that of all tests. What is killed while it writes there needs one of its own.
    """
    shared = {
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "SOURCE_DATE_EPOCH": "1700000000",
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
    }
    return os.environ | shared | ({} if cache is None else {"JAX_COMPILATION_CACHE_DIR": str(cache)})


def psyco(
    *arguments: str | Path,
    env: dict[str, str],
    program: tuple[str, ...] = ("-m", "psyco"),
    start_new_session: bool = False,
) -> subprocess.Popen[str]:
    """Start the program; output is kept for messages."""
    return subprocess.Popen(
        [sys.executable, *program, *map(str, arguments)],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=start_new_session,
    )
