"""A run that takes a second, in this process and in processes of its own."""

import os
import subprocess
import sys
from pathlib import Path

from psyco._src.run.config import Config
from psyco._src.synthesis.settings import Settings

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
OUTCOME = ("policy.safetensors", "metrics.csv", "certificate.json", "episodes.json")


def outcome(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in OUTCOME}


def environment(cache: Path) -> dict[str, str]:
    """Processes share their compiled code, and a time for everything that has one."""
    return os.environ | {
        "JAX_COMPILATION_CACHE_DIR": str(cache),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "SOURCE_DATE_EPOCH": "1700000000",
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
    }


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
