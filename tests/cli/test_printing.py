"""What a user typed and what files hold is printed as it is: no markup, no emoji, nothing that a terminal obeys."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from psyco._src.cli.common import visible
from psyco._src.cli.display import NARROW, summary
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
    said = cli(*arguments)
    assert said.status == 2
    assert said.err.startswith("error: ")
    assert [path.name for path in tmp_path.iterdir()] == ["RUN"], "nothing is written elsewhere"


@pytest.mark.parametrize(
    "error",
    [MemoryError("Unable to allocate 7 TiB"), RuntimeError("RESOURCE_EXHAUSTED: Out of memory\nat x")],
)
def test_what_memory_cannot_hold_is_one_sentence(cli: Any, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def fail() -> None:
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
