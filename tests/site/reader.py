"""Somebody who copies the blocks of a page one after the other, into one folder and one session, and has little time.

The reader works in a copy of the repository, so `examples/` is there, and has `my_env.py` of *Get started*. Budgets are
small, in one way for all pages: `REPLACED`, `OPTIONS` and `ARGUMENTS` say what is given instead of what a page says, or
in addition. Every other word of a block is taken as it stands.
"""

from __future__ import annotations

import dataclasses
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import typer

import psyco
from psyco._src.cli.app import app

ROOT = Path(__file__).parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^``` ?(\w*)([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)

# What a command is given instead of what the page says.
REPLACED = {
    "--episodes": "60",
    "--policy-episodes": "60",
    "--train-against": "1",
    "--steps": "2000",
    "--time": "5s",
    "--points": "2",
    "--seeds": "1",
    "--workers": "1",
    "--trials": "3",
}
# What it is given where the page says nothing of it.
LEARNING = {"--episodes": "60", "--max-episodes": "100", "--candidates": "1"}
OPTIONS: Mapping[str, Mapping[str, str]] = {
    "synthesize": LEARNING,
    "pareto": {"--episodes": "60", "--points": "2", "--seeds": "1", "--workers": "1"},
    "study": {"--workers": "1"},
    "tune": {"--trials": "3", "--rerun-seeds": "1", "--validation-seeds": "2", "--workers": "1"},
    "verify": {"--max-episodes": "100"},
    "stress": {"--max-episodes": "100"},
    "exploit": {"--episodes": "60", "--max-episodes": "100"},
    "crossplay": {"--episodes": "50"},
    "reproduce": {"--episodes": "400", "--repetitions": "2"},  # and one part alone, see `small`
}
BUDGETS = {"--episodes", "--steps", "--time", "--config"}  # one of them is enough
# The same for functions of `psyco`.
SETTINGS = {"max_episodes": 100, "candidates": 1, "verify_every": 0}
ARGUMENTS: Mapping[str, Mapping[str, Any]] = {
    "synthesize": {"episodes": 60, "settings": SETTINGS},
    "start": {"episodes": 60, "settings": SETTINGS},
    "verify": {"max_episodes": 100},
    "attack": {"episodes": 60, "max_episodes": 100},
    "exploit": {"episodes": 60, "max_episodes": 100},
    "train_against": {"episodes": 60, "policy_episodes": 60, "rounds": 1, "max_episodes": 100},
    "learn_risk": {"episodes": 100},
    "pareto_front": {"points": 2, "seeds": 1, "workers": 1, "settings": {"episodes": 60}},
    "study": {"workers": 1},
    "tune": {
        "trials": 3,
        "rerun_seeds": 1,
        "validation_seeds": 2,
        "workers": 1,
        "settings": {"episodes": 60},
    },
}
UNSAFE = ("particle-dance", "")  # return alone: the block about risks needs a policy that collides
PROGRAM = '#include <stdio.h>\n#include "psyco_policy.h"\nint main(void) {\n%s\nreturn 0;\n}\n'
TRAINING = re.compile(r"\.learn\([\d_]+")  # of Stable-Baselines3, in steps
VERDICTS = {
    "synthesize",
    "resume",
    "verify",
    "stress",
    "exploit",
    "crossplay",
    "exact",
}  # of little learning: any verdict will do, an error will not


class Block(NamedTuple):
    """A fenced block of a page."""

    page: str
    language: str
    title: str
    text: str


def blocks_of(page: Path) -> list[Block]:
    """All fenced blocks of a page but those that include a part of a script, which is run as a whole."""
    found = FENCE.findall(page.read_text(encoding="utf-8"))
    name = page.relative_to(ROOT).as_posix()
    return [Block(name, each[0], each[1].strip(), each[2]) for each in found if "--8<--" not in each[2]]


BLOCKS = [block for page in PAGES for block in blocks_of(page)]


def commands(text: str) -> list[list[str]]:
    """The words of every command of a `sh` block."""
    lines = text.replace("\\\n", " ").splitlines()
    return [words for line in lines if (words := shlex.split(line, comments=True))]


def small(words: list[str]) -> list[str]:
    """A command of `psyco` with a small budget."""
    command, changed = words[0], list(words)
    for option, value in REPLACED.items():
        if option in changed:
            place = changed.index(option) + 1
            changed[place] = f"+{value}" if changed[place].startswith("+") else value
    for option, value in OPTIONS.get(command, {}).items():
        given = BUDGETS if option in BUDGETS and command != "reproduce" else {option}
        if not given & set(changed) and {"--replay", "--outcomes", "status"}.isdisjoint(changed):
            changed += [option, value]
    if command == "reproduce" and (len(words) == 1 or words[1].startswith("--")):
        changed.append("belief")
    return changed


class Reader:
    """Copies blocks."""

    def __init__(self, folder: Path, cli: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.cli, self.monkeypatch = folder, cli, monkeypatch
        self.session: dict[str, Any] = {"psyco": psyco}
        monkeypatch.chdir(folder)
        monkeypatch.syspath_prepend(folder)
        monkeypatch.setattr("psyco._src.paper.reproduction.MAX_REPETITIONS", 4)
        shutil.copytree(ROOT / "examples", folder / "examples")
        study = folder / "examples" / "study.toml"
        study.write_text(study.read_text().replace("20_000", "200").replace("seeds = 5", "seeds = 1"))
        started = next(block for block in BLOCKS if block.title == 'title="my_env.py"')
        (folder / "my_env.py").write_text(started.text)

    def copy(self, block: Block) -> None:
        """Run a block; an error names its page."""
        if block.language == "python":
            with self.monkeypatch.context() as patch:
                for name, arguments in ARGUMENTS.items():
                    patch.setattr(psyco, name, _with(getattr(psyco, name), arguments))
                if "stable_baselines3" in block.text:
                    import torch

                    from psyco.sb3 import Bridge

                    torch.set_num_threads(1)  # small networks: more of them wait for each other
                    patch.setattr(Bridge, "certify", _with(Bridge.certify, ARGUMENTS["verify"]))
                text = TRAINING.sub(".learn(1_000", block.text)
                exec(compile(text, block.page, "exec", dont_inherit=True), self.session)
        elif block.language == "sh":
            for words in commands(block.text):
                self.run(words)
        elif block.language == "c":
            self.compile(block.text)

    def compile(self, text: str) -> None:
        """Put a block of C into a program beside what was exported, and run it."""
        source = self.folder / "firmware" / "main.c"
        source.write_text(PROGRAM % text)
        files = [source, source.with_name("psyco_policy.c")]
        compiler = os.environ.get("CC") or "cc"
        subprocess.run([compiler, "-std=c99", "-Wall", "-Werror", *files, "-lm", "-o", "program"], check=True)
        subprocess.run([self.folder / "program"], check=True)

    def run(self, words: list[str]) -> None:
        """Run a command: ours in this process; of others it is looked at whether they could be."""
        match words:
            case ["psyco", *rest]:
                done = self.cli(*small(rest))
                allowed = (0, 1, 3) if rest[0] in VERDICTS else (0,)
                assert done.status in allowed, f"{shlex.join(words)}: {done.err}"
            case ["python", script]:
                assert (self.folder / script).is_file(), f"{script} is run by tests/test_examples.py"
            case ["make", target]:
                assert re.search(rf"^{target}:.* ## ", (ROOT / "Makefile").read_text(), re.MULTILINE), target
            case ["cp", source, target]:
                shutil.copy(source, target)
            case ["printf", text, ">", file]:
                Path(file).write_text(text.replace("\\n", "\n"))
            case ["pip", "install", "."] | ["python3", "-m", "venv", ".venv"] | [".", ".venv/bin/activate"]:
                pass  # tests/test_package.py
            case _:
                raise AssertionError(f"nobody knows how to run {shlex.join(words)}")


def _with(function: Callable[..., Any], arguments: Mapping[str, Any]) -> Callable[..., Any]:
    def called(*positional: Any, **given: Any) -> Any:
        more = {"episodes": 6_000} if positional == UNSAFE else {}
        return function(*positional, **given | arguments | more | _settings(function, given, arguments))

    return called


def _settings(function: Callable[..., Any], given: Any, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a call with those of a small budget in place."""
    if "settings" not in arguments:
        return {}
    own, small = given.get("settings"), arguments["settings"]
    if isinstance(own, psyco.Settings):
        return {"settings": dataclasses.replace(own, **small)}
    if function.__name__ in ("synthesize", "start"):
        return {"settings": psyco.Settings(**small)}
    return {"settings": {**(own or {}), **small}}


@cache
def group() -> Any:
    """All commands; made once, since that takes a while."""
    return typer.main.get_command(app)


def examples() -> list[list[str]]:
    """The words of every example in the help of a command, which the reference shows."""
    shown = [str(command.help).partition("Example")[2] for command in group().commands.values()]
    found = [each for text in shown for each in re.findall(r"(?:`|^ *)(psyco (?:\\\n|[^`\n])*)", text, re.MULTILINE)]
    return [words for text in found for words in commands(text)]


def known_options(command: str) -> set[str]:
    """The options that a command of `psyco` has."""
    params = group().commands[command].params
    return {name for each in params for name in (*each.opts, *each.secondary_opts)}
