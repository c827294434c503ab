"""Kill runs with SIGKILL at random moments, resume them, and see that nothing is lost: `make soak KILLS=1000`.

Every run is killed several times while it learns, selects and certifies, and then ends with the bytes of a run that
nobody disturbed. Then `psyco verify RUN` is killed: the looks that it began are spent, and the next one takes fresh
episodes.

    python -m tests.soak [KILLS] [SEED]
"""

from __future__ import annotations

import itertools
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

from psyco._src.verification.ledger import look_share
from tests.forked import Forked
from tests.runs.small import CONFIG, OUTCOME, environment, outcome

VERDICTS = (0, 1, 3)  # exit statuses of a command that has come to its end
KILLS_PER_RUN, KILLS_PER_CHECK = 4, 1
LOCK = ".lock"
DYING = str(Path(__file__).parent / "runs" / "die_while_writing.py")
HOWS = ("before", "after", "half")

Command = tuple[str | Path, ...]


class Soak(NamedTuple):
    """What all kills share."""

    env: dict[str, str]
    config: Path
    undisturbed: dict[str, bytes]
    seconds: float  # of processor time, from the beginning of the work to the end of an undisturbed run
    chance: random.Random


def prepare(folder: Path, seed: int = 0) -> Soak:
    """An undisturbed run, to compare with."""
    env, config = environment(folder / "cache"), folder / "small.toml"
    config.write_text(CONFIG.to_toml())
    whole = folder / "undisturbed"
    what = ("synthesize", "--config", config, "--out", whole)
    finish(what, env)  # the first one compiles
    process = Forked(*what, "--overwrite", env=env)
    seconds = work(process, whole, inf)
    _, errors = process.communicate()
    assert process.returncode in VERDICTS, errors
    return Soak(env, config, outcome(whole), seconds, random.Random(seed))


def soak(it: Soak, folder: Path, kills: int) -> Counter[str]:
    """Kill so many times; returns how often in which phase of a run."""
    counts: Counter[str] = Counter()
    own = len(json.loads(it.undisturbed["certificate.json"])["looks"])
    for number in itertools.count():
        if counts.total() >= kills:
            break
        run = folder / f"run-{number}"
        for _ in range(KILLS_PER_RUN):
            if kill(it, run, (*go_on(it, run), "--checkpoint-every", "0"), moments=25, seconds=it.seconds / 2):
                counts[phase(run)] += 1
        finish(go_on(it, run), it.env)
        assert outcome(run) == it.undisturbed, f"{run} has other bytes, after {dict(counts)}"
        again = ("verify", run, "--max-episodes", "100", "--json")
        for _ in range(KILLS_PER_CHECK):
            counts["verify"] += kill(it, run, again, moments=6, seconds=it.seconds / 4)
        check_looks(json.loads(finish(again, it.env)), own)
        kept = outcome(run) | {name: it.undisturbed[name] for name in ("looks.json", "certificate.json")}
        assert kept == it.undisturbed, f"{run} was changed by a verification, after {dict(counts)}"
        assert (run / "certificate.json").read_bytes() == max((run / "certificates").glob("*.json")).read_bytes()
        shutil.rmtree(run)
        print(f"{counts.total()} of {kills} kills, {number + 1} runs whole", file=sys.stderr, flush=True)
    return counts


def go_on(it: Soak, run: Path) -> Command:
    """The command that a user would give: resume, or start again if nothing was written yet."""
    begun = (run / "config.toml").exists()
    return ("resume", run) if begun else ("synthesize", "--config", it.config, "--out", run)


def kill(it: Soak, run: Path, command: Command, *, moments: int, seconds: float) -> bool:
    """At one of the first moments of writing, or at a random time of its work; False if it was faster."""
    if it.chance.random() < 0.5:
        moment, how = it.chance.randint(1, moments), it.chance.choice(HOWS)
        process = Forked(str(moment), how, *command, env=it.env, program=DYING)
    else:
        process = Forked(*command, env=it.env)
        work(process, run, it.chance.uniform(0.0, seconds))
        process.kill()
    _, errors = process.communicate()
    assert process.returncode in (*VERDICTS, -signal.SIGKILL) and "Traceback" not in errors, errors
    return process.returncode < 0


def work(process: Forked, run: Path, seconds: float) -> float:
    """Let it work for so much processor time, which does not depend on what else goes on; returns what it took."""
    began, now = None, 0.0
    while process.poll() is None and (began is None or now - began < seconds):
        time.sleep(0.002)
        now = processor_time(process.pid, now)
        if began is None and is_at_work(process.pid, run):
            began = now
    return now - (now if began is None else began)


def processor_time(pid: int, before: float) -> float:
    """Seconds of a process so far; what it was before if it has ended."""
    try:
        numbers = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return before
    return max(before, (int(numbers[11]) + int(numbers[12])) / os.sysconf("SC_CLK_TCK"))


def is_at_work(pid: int, run: Path) -> bool:
    """Whoever works on a run says so in its lock."""
    try:
        return (run / LOCK).read_text() == f"process {pid}\n"
    except OSError:
        return False


def finish(command: Command, env: dict[str, str]) -> str:
    """Run a command to its end; returns what it printed."""
    process = Forked(*command, env=env)
    out, errors = process.communicate()
    assert process.returncode in VERDICTS and "Traceback" not in errors, errors
    return out


def phase(run: Path) -> str:
    """What was going on when the process died, as its files tell."""
    metrics = run / "metrics.csv"
    rows = metrics.read_bytes().count(b"\n") - 1 if metrics.exists() else 0
    if rows < CONFIG.settings.episodes // CONFIG.settings.options["population"]:
        return "learning" if rows > 0 else "start"
    if not (run / "looks.json").exists():
        return "selection"
    return "outcome" if (run / OUTCOME[0]).exists() else "certification"


def check_looks(certificate: dict[str, Any], own: int) -> None:
    """The run's own looks, then one for each verification that was begun; none takes another's episodes or error."""
    looks = certificate["looks"]
    assert len(looks) > own
    assert [look["seed_block"] for look in looks] == list(range(len(looks)))
    assert [look["share"] for look in looks] == [look_share(i + 1) for i in range(len(looks))]


if __name__ == "__main__":
    kills, seed = (*map(int, sys.argv[1:]), *(1000, 0)[len(sys.argv) - 1 :])
    with tempfile.TemporaryDirectory() as folder:
        began = time.monotonic()
        counts = soak(prepare(Path(folder), seed), Path(folder), kills)
    print(f"{counts.total()} kills in {time.monotonic() - began:.0f} s, no run lost, no byte different: {dict(counts)}")
