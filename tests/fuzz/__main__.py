"""`python -m tests.fuzz --minutes 10 --seed 0`: all kinds in turn; a finding is kept in tests/corpus for ever."""

import argparse
import signal
import tempfile
import time
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

from psyco._src.core import files
from tests.fuzz.judge import CORPUS, judge, warm_up
from tests.fuzz.kinds import KINDS, Place

TURN = 1.0  # seconds for one kind before the next one's turn
HANGING = 120  # seconds after which an input is given up; a busy machine may take long for a first import


class Hang(Exception):
    """An input that does not come to an end."""


def _give_up(*_: Any) -> None:
    raise Hang(f"no end after {HANGING} s")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kind", action="append", choices=[*KINDS], help="only this one; repeatable")
    arguments = parser.parse_args()
    counts: Counter[str] = Counter()
    findings: dict[tuple[str, str], Path] = {}
    rngs = {kind: Random(f"{arguments.seed} {kind}") for kind in arguments.kind or KINDS}
    signal.signal(signal.SIGALRM, _give_up)
    with tempfile.TemporaryDirectory() as folder:
        place = Place(Path(folder) / "place")
        for kind in rngs:
            warm_up(kind, place)
        until = time.monotonic() + 60 * arguments.minutes
        while time.monotonic() < until:
            for kind, rng in rngs.items():
                turn = time.monotonic() + TURN
                while time.monotonic() < turn:
                    data = KINDS[kind].make(rng, place)
                    signal.alarm(HANGING)
                    found = judge(kind, data, place)
                    signal.alarm(0)
                    counts[kind] += 1
                    if found and (kind, found[:60]) not in findings:
                        path = CORPUS / kind / files.digest(data)[:16]
                        path.parent.mkdir(parents=True, exist_ok=True)
                        path.write_bytes(data)
                        findings[kind, found[:60]] = path
                        print(f"{kind}: {found[:500]}\n  {path}", flush=True)
    print("\n| kind | inputs | findings |\n|---|---|---|")  # as docs/security.md has it
    for kind in rngs:
        print(f"| {kind} | {counts[kind]:,} | {sum(found == kind for found, _ in findings)} |")
    print(f"| all | {counts.total():,} | {len(findings)} |")
    return 1 if findings else 0


if __name__ == "__main__":
    raise SystemExit(main())
