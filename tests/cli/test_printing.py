"""What a user typed and what files hold is printed as it is: no markup, no emoji, nothing that a terminal obeys."""

import importlib
import io
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from psyco._src.cli import check, common, display
from psyco._src.cli.common import visible
from psyco._src.cli.display import NARROW, summary
from psyco._src.cli.synthesize import _took
from psyco._src.core.wording import plural
from psyco._src.learners.metrics import Metrics
from tests.runs.small import begun

NAMES = ["[/red]", "[bold]x", ":dog:", "[link=x]y", "\\[", "a[0]"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("command", ["runs", "resume", "report", "export", "exact", "verify", "render", "check"])
def test_a_name_is_printed_as_it_was_typed(cli: Any, command: str, name: str) -> None:
    said = cli(command, name, *(["--onnx", "x.onnx"] if command == "export" else []))
    assert said.status == 2
    assert name in said.err.replace("\\\\", "\\")


@pytest.mark.parametrize("name", NAMES[1:])
def test_a_run_of_that_name_is_listed_and_compared(cli: Any, tmp_path: Path, name: str) -> None:
    begun(tmp_path / name)
    begun(tmp_path / "other")
    assert name in cli("runs", tmp_path).out
    assert cli("compare", tmp_path / name, tmp_path / "other").out.count(name) >= 2
    assert name in cli("report", tmp_path / name).out
    assert name in cli("plan", f'"{name}": P>=0.5 [ F x > 0 ]', "--max-episodes", 2).out


def test_what_a_terminal_would_obey_is_shown(cli: Any, tmp_path: Path) -> None:
    assert visible("a\x1b[2J\r\x07\x9b\u202eb\udcff\n\tλ≥ü") == r"a\x1b[2J\r\x07\x9b\u202eb\udcff" + "\n\tλ≥ü"
    run = begun(tmp_path / "\x1b[31mred")
    for said in (
        cli("runs", tmp_path),
        cli("compare", run, run),
        cli("report", run),
        cli("resume", run / "x"),
    ):
        assert "\x1b" not in said.out + said.err
        assert r"\x1b[31mred" in said.out + said.err


def test_a_folder_whose_name_is_no_text_is_shown(cli: Any, tmp_path: Path) -> None:
    run = begun(tmp_path / "\udcff")
    assert cli("runs", tmp_path).status == 0
    assert cli("report", run).status == 0


@pytest.mark.parametrize(
    "arguments",
    [
        ("runs", "x" * 300),
        ("resume", "x" * 300),
        ("exact", "x" * 300),
        ("export", "x" * 300, "--onnx", "y"),
        ("compare", "x" * 300, "x" * 300),
        ("render", "x" * 300),
        ("verify", "x" * 300),
        ("verify", "--outcomes", "x" * 300, "--require", "P>=0.5"),
        ("synthesize", "--config", "x" * 300),
        ("synthesize", "particle-dance", "--require", "P>=0.5 [ F step > 0 ]", "--out", "x" * 300),
        ("report", "RUN", "--out", ""),
        ("report", "RUN", "--out", "RUN"),
        ("report", "RUN", "--out", "x" * 300),
        ("report", "RUN", "--out", "/proc/nowhere/page.html"),
        ("compare", "RUN", "RUN", "--out", "/"),
        ("plan", "P>=0.5", "--max-episodes", "2", "--out", ""),
        ("plan", "P>=0.5", "--max-episodes", "2", "--out", "RUN"),
        ("plan", "P>=0.5", "--max-episodes", "2", "--out", "a.nothing"),
    ],
    ids=lambda arguments: " ".join(word[:12] for word in arguments),
)
def test_a_name_that_cannot_be_is_one_sentence_and_status_2(
    cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    begun(tmp_path / "RUN")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(display, "LINE_EVERY", 600.0)  # no progress, however busy this machine is
    said = cli(*arguments)
    assert said.status == 2
    assert said.err.startswith("error: ")
    assert [path.name for path in tmp_path.iterdir()] == ["RUN"], "nothing is written elsewhere"


@pytest.mark.parametrize(
    "error",
    [MemoryError("Unable to allocate 7 TiB"), RuntimeError("RESOURCE_EXHAUSTED: Out of memory\nat x")],
)
def test_what_memory_cannot_hold_is_one_sentence(cli: Any, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def fail(**_: object) -> None:
        raise error

    monkeypatch.setattr("psyco._src.cli.app.app", fail)
    said = cli("runs")
    assert said.status == 2
    assert said.err.count("\n") == 1 and "needs more memory than is available" in said.err


def test_the_line_of_a_run_shows_mean_values_where_there_is_room() -> None:
    row = {"return": 1.0, "satisfied": 1.0, "c_sat": 0.5, "lambda": 0.25, "value[0]": 0.5, "value[1]": 1234.0}
    metrics = Metrics({name: np.array([value, value]) for name, value in row.items()})
    assert "value 0.5, 1.23e+03  c_sat" in summary(metrics)
    assert "value" not in summary(metrics, NARROW)
    assert "value" not in summary(Metrics({name: column for name, column in metrics.items() if "[" not in name}))


def test_a_run_without_constraints_shows_its_return_only() -> None:
    row = {"deployed_return": 1.5, "return": 1.0}
    assert summary(Metrics({name: np.array([value]) for name, value in row.items()})).split() == (
        ["return", "1.50", "(exploring", "1.00)"]
    )


def test_a_stopped_run_shows_the_return_of_its_deployed_policy_or_says_that_it_explored(
    cli: Any, tmp_path: Path
) -> None:
    begun(tmp_path / "stopped")
    (row,) = json.loads(cli("runs", tmp_path, "--json").out)
    # The last check played the policy itself; exploring returned another number.
    table = tmp_path / "stopped" / "metrics.csv"
    names, *rows = table.read_text().splitlines()
    at = {name: names.split(",").index(name) for name in ("return", "verified_return")}

    def rewrite(checked: list[str]) -> None:
        cells = [row.split(",") for row in rows]
        for row, value in zip(cells, checked, strict=True):
            row[at["verified_return"]] = value
        table.write_text("\n".join([names, *(",".join(row) for row in cells), ""]))

    rewrite(["2.0", "4.0", "nan"])
    (row,) = json.loads(cli("runs", tmp_path, "--json").out)
    assert (row["return"], row["return_of"]) == (4.0, "deployed")
    rewrite(["nan", "nan", "nan"])
    (row,) = json.loads(cli("runs", tmp_path, "--json").out)
    assert (row["return"], row["return_of"]) == (0.9, "exploring")
    assert "0.90 exploring" in cli("runs", tmp_path).out
    table.write_text("\n".join([f"{names},deployed_return,deployed_satisfied", *(f"{row},7.5,1" for row in rows), ""]))
    (row,) = json.loads(cli("runs", tmp_path, "--json").out)
    assert (row["return"], row["return_of"]) == (7.5, "deployed")


@pytest.mark.parametrize(("learning", "says"), [(2.0, "in 2.0 s (3."), (9.0, "in 9.0 s (with earlier sessions; this")])
def test_the_time_of_a_command_is_never_shown_as_the_total_of_a_longer_time(learning: float, says: str) -> None:
    run: Any = SimpleNamespace(info=SimpleNamespace(seconds={"learning": learning}))
    assert says in _took(run, time.perf_counter() - 3.1)


def test_checks_wrap_beside_their_names_on_a_terminal_and_not_in_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    message = "observations are " + "numbers and numbers and " * 9 + "end\nplan          10  20"
    monkeypatch.setattr(check, "console", Console(width=80, force_terminal=True))
    lines = check._wrapped(message).splitlines()
    assert len(lines) > 3 and max(map(len, lines)) <= 80 and lines[-1] == "plan          10  20"
    assert len(lines[0]) <= 80 - check.INDENT and all(line.startswith(" " * check.INDENT) for line in lines[1:-1])
    assert " ".join(" ".join(lines).split()) == " ".join(message.split())
    monkeypatch.setattr(check, "console", Console(file=io.StringIO()))
    assert check._wrapped(message) == message


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (("plan", "P>=0.5", "--max-episodes", "2"), "computing"),
        (("check", "CartPole-v1"), "checking"),
        (("export", "RUN", "--onnx", "policy.onnx"), "exporting to ONNX"),
        (("render", "RUN"), "playing and drawing episodes"),
        (("exact", "RUN"), "computing exact values"),
        (("exact", "RUN", "--optimum", "--require", "P=? [ F x=1 ]"), "computing the optimum"),
    ],
    ids=lambda case: case[0] if isinstance(case, tuple) else None,
)
def test_long_commands_say_what_they_do(
    cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...], says: str
) -> None:
    shown, name = list[str](), command[0]

    @contextmanager
    def show(text: str) -> Iterator[Any]:
        shown.append(text)
        yield shown.append

    monkeypatch.chdir(tmp_path)
    module = importlib.import_module(f"psyco._src.cli.{name}")
    monkeypatch.setattr(module, "show_activity", show)
    assert cli(*command).status == (2 if "RUN" in command else 0)  # there is no such run
    assert shown[0] == says
    assert name != "plan" or "computing anytime" in shown


@pytest.mark.parametrize("terminal", [True, False])
def test_a_certificate_and_a_plan_wrap_at_words_on_a_terminal_only(
    cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, terminal: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    out = io.StringIO()
    monkeypatch.setattr(common, "console", Console(file=out, width=60, force_terminal=terminal, no_color=True))
    common.say_wrapped("word " * 30 + "end")
    lines = out.getvalue().splitlines()
    assert len(lines) == (3 if terminal else 1) and " ".join(" ".join(lines).split()) == "word " * 30 + "end"
    said = list[str]()
    for name in ("plan", "verify"):
        monkeypatch.setattr(importlib.import_module(f"psyco._src.cli.{name}"), "say_wrapped", said.append)
    cli("plan", "P>=0.5", "--max-episodes", "2")
    (Path("outcomes.txt")).write_text("1\n0\n")
    cli("verify", "--outcomes", "outcomes.txt", "--require", "P>=0.5")
    assert said[0].startswith("✓ the constraint holds") and said[1].startswith("UNDECIDED")


def test_an_activity_is_shown_with_its_duration(monkeypatch: pytest.MonkeyPatch) -> None:
    shown, seen = list[str](), Event()
    monkeypatch.setattr(display, "LINE_EVERY", 0.01)
    monkeypatch.setattr(display, "remark", lambda text: (shown.append(text), text.startswith("then") and seen.set()))
    with display.show_activity("first") as update:
        update("then")
        assert seen.wait(30.0)
    assert shown[-1] == "then, for 0 s"


def test_one_of_a_kind_is_singular() -> None:
    assert [plural(n, "episode") for n in (0, 1, 1204)] == ["0 episodes", "1 episode", "1,204 episodes"]
