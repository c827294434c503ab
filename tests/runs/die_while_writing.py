"""`psyco`, killed by itself at the n-th moment of writing: before or after an fsync or a rename, or with half a file.

python die_while_writing.py N HOW ARGUMENTS...
"""

import os
import signal
import sys

from psyco._src.cli import main
from psyco._src.core import files

countdown, how = int(sys.argv[1]), sys.argv[2]
fsync, replace = os.fsync, os.replace


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def is_due() -> bool:
    global countdown
    countdown -= 1
    return countdown == 0


def dying_sync(descriptor: int) -> None:
    due = is_due()
    if (
        due
        and how == "half"
        and (size := os.fstat(descriptor).st_size)
        and os.path.isfile(f"/proc/self/fd/{descriptor}")
    ):
        os.ftruncate(descriptor, size // 2)  # as if the rest had not reached the disk
        die()
    if due and how == "before":
        die()
    fsync(descriptor)
    if due:
        die()


def dying_replace(source: str, target: str) -> None:
    due = is_due()
    if due and how == "before":
        die()
    replace(source, target)
    if due:
        die()


files.sync = dying_sync
files.os.replace = dying_replace
sys.argv = ["psyco", *sys.argv[3:]]
main()
