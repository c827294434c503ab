"""How long until a run is under way: with nothing compiled yet, and with JAX's persistent compilation cache."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def main() -> None:
    domain = "particle-dance"
    require = "P>=0.85 [ G (distance >= 0.1 | collisions <= 1) ] & C>=0.98"
    with tempfile.TemporaryDirectory() as folder:
        environment = {k: v for k, v in os.environ.items() if k not in ("XLA_FLAGS", "JAX_COMPILATION_CACHE_DIR")}
        environment["XDG_CACHE_HOME"] = folder
        for name, flags in {"cold": [], "cached": [], "cold, cache off": ["--no-compile-cache"]}.items():
            out = Path(folder) / name.replace(" ", "")
            command = [
                sys.executable,
                "-m",
                "psyco",
                *flags,
                "synthesize",
                domain,
                "--require",
                require,
                "--learner",
            ]
            began = time.perf_counter()
            with subprocess.Popen(
                [*command, "snes", "--episodes", "20000", "--out", str(out)],
                env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            ) as process:  # fmt: skip
                metrics = out / "metrics.csv"
                while process.poll() is None and not (metrics.exists() and metrics.read_bytes().count(b"\n") > 1):
                    time.sleep(0.02)
                first = time.perf_counter() - began
                process.wait()
            print(f"  {first:6.1f} s to the first generations, {time.perf_counter() - began:6.1f} s in all  ({name})")
