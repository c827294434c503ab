"""`psyco` in processes of its own that need not import anything: a server has imported it, and forks for each of them.

More than half of what a short run costs is importing, so twice as many can be killed in the same time.
"""

import importlib
import os
import runpy
import sys
import tempfile
from multiprocessing import get_context
from pathlib import Path

SERVER = get_context("forkserver")
SERVER.set_forkserver_preload(["tests.forked"])
for needed in ("jax", "optax", "scipy.stats", "psyco._src.cli.app", "psyco._src.api.synthesize"):
    importlib.import_module(needed)  # starts no thread and no backend of JAX: forking is safe


class Forked:
    """A process, with what tests use of `subprocess.Popen`."""

    def __init__(self, *arguments: str | Path, env: dict[str, str], program: str = "") -> None:
        self._said = tempfile.TemporaryDirectory()
        words = [program or "psyco", *map(str, arguments)]
        self._process = SERVER.Process(target=_live, args=(words, env, self._said.name))
        self._process.start()
        self.pid, self.kill = self._process.pid, self._process.kill

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    poll = returncode.fget

    def communicate(self) -> tuple[str, str]:
        self._process.join()
        out, errors = (Path(self._said.name, name).read_text() for name in ("out", "errors"))
        self._said.cleanup()
        return out, errors


def _live(words: list[str], env: dict[str, str], folder: str) -> None:
    import jax

    for descriptor, name in ((1, "out"), (2, "errors")):
        os.dup2(os.open(Path(folder, name), os.O_WRONLY | os.O_CREAT), descriptor)
    os.environ.update(env)
    jax.config.update("jax_compilation_cache_dir", env["JAX_COMPILATION_CACHE_DIR"])  # JAX has read them before
    jax.config.update(
        "jax_persistent_cache_min_compile_time_secs", float(env["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"])
    )
    sys.argv = words
    if words[0].endswith(".py"):
        runpy.run_path(words[0], run_name="__main__")
    else:
        from psyco._src.cli import main

        main()
