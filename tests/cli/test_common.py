"""Which code a command may import, and where it is looked for."""

import io
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from rich.table import Table

from psyco._src.cli import common, plan
from psyco._src.cli.common import code_of
from psyco._src.logic.parser import parse
from tests.conftest import Said

# An installed environment that imports what its parameter names, as highway_env does with `other_vehicles_type`.
ROAD = """
import importlib
import gymnasium
import numpy as np

class Road(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, vehicle="vehicles.Car"):
        module, _, name = vehicle.partition(".")
        self.vehicle = getattr(importlib.import_module(module), name)
"""
CONFIG = """requirement = "P>=0.5 [ G obs[0] < 2 ]"
[domain]
name = "road_env:Road"
horizon = 5
vehicle = "evil_vehicles.Car"
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder of a stranger, and an installed module."""
    installed, here = tmp_path / "site-packages", tmp_path / "here"
    installed.mkdir()
    here.mkdir()
    (installed / "road_env.py").write_text(ROAD)
    (here / "evil_vehicles.py").write_text("open('bitten', 'w').close()\nclass Car: pass\n")
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path] + [str(installed)])
    monkeypatch.chdir(here)
    for name in ("road_env", "evil_vehicles"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return here


def test_trust_in_an_installed_environment_imports_nothing_from_the_working_folder(cli, folder: Path) -> None:
    (folder / "config.toml").write_text(CONFIG)
    done: Said = cli("synthesize", "--config", "config.toml", "--out", "run", "--trust", "road_env:Road")
    assert done.status == 2 and "No module named 'evil_vehicles'" in done.err
    assert not (folder / "bitten").exists()


def test_the_question_for_trust_shows_the_parameters_of_the_file(cli, folder: Path) -> None:
    (folder / "config.toml").write_text(CONFIG)
    asked: Said = cli("synthesize", "--config", "config.toml", "--out", "run")
    assert asked.status == 2 and "--trust road_env:Road" in asked.err
    assert "vehicle = 'evil_vehicles.Car'" in asked.err and "horizon = 5" in asked.err


@pytest.mark.parametrize(
    ("typed", "appended"),
    [
        ("road_env:Road", False),
        ("road_env.parts:Road", False),
        ("evil_vehicles:Car", True),
        ("python:evil_vehicles:act", True),
        ("python:road_env:act", False),
        ("__main__:Road", False),
        (":", False),
        ("CartPole-v1", False),
    ],
)
def test_the_working_folder_comes_last_and_only_for_a_module_that_is_nowhere_else(
    folder: Path, typed: str, appended: bool
) -> None:
    before = sys.path[:]
    code_of(typed)
    code_of(typed)
    assert sys.path == before + [str(folder)] * appended


@pytest.mark.parametrize("columns", [30, 60, 80, 120])
def test_no_value_of_a_table_is_cut(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = common.make_console(width=columns, force_terminal=True, file=io.StringIO())
    monkeypatch.setattr(common, "console", terminal)
    monkeypatch.setattr(plan, "console", terminal)
    share, numbers = np.array([0.5, 0.25]), np.array([20000.0, 12345.0])
    test: Any = SimpleNamespace(
        p=[0.849999, 0.9], satisfied=share, violated=share, undecided=share, episodes=numbers, needed=lambda _: numbers
    )
    plan._print(parse("P>=0.85 [ F x > 0 ]").constraints[0], {"calibrated": test})
    values = ["particle-dance", "0.5000 (0.4321 to 0.5678)", "-1234.56 (-2345.67 to 3456.78)", "12,345 episodes"]
    table = Table("task", "certified", "return, IQM", "first satisfied")
    table.add_row(*values)
    common.print_table(table)
    text = terminal.file.getvalue()  # type: ignore[attr-defined]
    assert "…" not in text
    shown = ["0.849999", "20000"] + ["50%"] * (columns >= 80)
    assert all(value in text for value in [*shown, *values]), text
