"""What an input must not bring about, watched by an audit hook: code, processes, connections, files elsewhere."""

import collections
import dataclasses
import inspect
import os
import resource
import sys
import time
import typing
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType
from typing import Any

from psyco._src.runs.lock import LOCK

SECONDS = 1.0  # of this process: what others do to the machine is no fault of an input
MEMORY = 512 * 2**20  # bytes that one input may add to the most that was ever used

PROCESSES = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork", "os.forkpty", "os.kill")
CONNECTIONS = ("socket.connect", "socket.bind", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto")
CHANGES = (
    "os.remove",
    "os.rename",
    "os.mkdir",
    "os.rmdir",
    "os.truncate",
    "os.link",
    "os.symlink",
    "os.chmod",
    "shutil.rmtree",
)
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND

HARMLESS = (
    "<frozen importlib._bootstrap>",
    typing.__file__,
    inspect.__file__,
    dataclasses.__file__,
    collections.__file__,
)

_folder: str | None = None  # where an input may write; None: nothing is watched
_seen: list[str] = []
_installed = False


@contextmanager
def watched(folder: Path) -> Iterator[list[str]]:
    """Gives the list of what happened that must not; it is complete when the block ends."""
    global _folder, _installed
    if not _installed:
        sys.addaudithook(_hook)  # for the rest of the process: there is no way to take one away
        _installed = True
    _seen.clear()
    found: list[str] = []
    _folder, began, memory = os.path.realpath(folder), time.process_time(), _memory()
    try:
        yield found
    finally:
        _folder = None
        found += _seen
        if (took := time.process_time() - began) > SECONDS:
            found.append(f"it took {took:.1f} s")
        if (more := _memory() - memory) > MEMORY:
            found.append(f"it took {more / 2**20:,.0f} MB")


def _memory() -> int:
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if _folder is None:
        return
    if event == "subprocess.Popen" and Path(os.fsdecode(arguments[0])).name.startswith("ffmpeg"):
        return  # the encoder of films
    if event in PROCESSES or event in CONNECTIONS or event == "pickle.find_class":
        _seen.append(f"{event} {arguments!r:.200}")
    elif event == "open":
        path, _, flags = arguments
        if flags & WRITING and not _inside(path) and not _is_lock(path, flags):
            _seen.append(f"it writes to {path!r}")
    elif event in CHANGES:
        if not all(map(_inside, (path for path in arguments if isinstance(path, str | bytes | os.PathLike)))):
            _seen.append(f"{event} {arguments!r:.200}")
    elif event == "import":
        if arguments[1] and _inside(arguments[1]):
            _seen.append(f"it imports {arguments[:2]!r}")
    elif (
        event == "exec"
        and isinstance(code := arguments[0], CodeType)
        and code.co_filename.startswith("<")
        and not _of_our_own()
    ):
        _seen.append(f"it runs {code!r}")


def _inside(path: Any) -> bool:
    """A descriptor is of a file that was opened before."""
    if isinstance(path, int) or path == os.devnull:
        return True
    return Path(os.fsdecode(os.path.realpath(path))).is_relative_to(str(_folder))


def _is_lock(path: Any, flags: int) -> bool:
    """Whether a run is locked is found out by opening its lock, which is not made."""
    return not flags & os.O_CREAT and os.path.basename(os.fsdecode(path)) == LOCK


def _of_our_own() -> bool:
    """Modules that are imported late make classes by `exec`, and type hints are texts until somebody asks for them."""
    frame = sys._getframe().f_back
    while frame is not None:
        if frame.f_code.co_filename in HARMLESS:
            return True
        frame = frame.f_back
    return False
