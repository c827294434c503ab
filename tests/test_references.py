"""The benchmark beside Stable-Baselines3: its table, and a short run of each side."""

import math
from pathlib import Path

import pytest

from benchmarks import references
from benchmarks.references import Cell, append, interquartile_mean, read_rows, run, table


def row(side: str, seed: int, value: float, seconds: int) -> dict[str, object]:
    cell = Cell("ppo", "Hopper", side, seed, 1000)._asdict()
    return cell | {"version": "1", "return": value, "seconds": seconds, "processor": "any"}


def test_the_interquartile_mean_of_three_values_weighs_the_middle_one_four_times() -> None:
    assert interquartile_mean([6.0, 0.0, 3.0]) == pytest.approx((0.25 * 0 + 1 * 3 + 0.25 * 6) / 1.5)
    assert interquartile_mean([8.0, 1.0, 2.0, 100.0]) == pytest.approx(5.0)


def test_rows_are_kept_and_the_table_has_our_part_of_the_reference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(references, "FILE", tmp_path / "references.csv")
    assert read_rows() == []
    for seed, (theirs, ours) in enumerate([(100.0, 110.0), (300.0, 330.0), (200.0, 220.0)]):
        append(row("stable-baselines3", seed, theirs, 40))
        append(row("psyco", seed, ours, 10))
    *_, line = table(read_rows())
    assert line == "| `ppo` | Hopper | 1,000 | 100, 300, 200 | 40 | 110, 330, 220 | 10 | 1.10 | 0.25 |"


@pytest.mark.extra("stable_baselines3", "Box2D")
@pytest.mark.parametrize(("learner", "side"), [("ppo", "psyco"), ("sac", "stable-baselines3")])
def test_each_side_learns_and_is_played(learner: str, side: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(references, "EPISODES", 2)
    made = run(Cell(learner, "LunarLander", side, 0, 2000))
    assert math.isfinite(made["return"]) and made["return"] < 0  # it has hardly learned
    assert made.keys() == set(references.COLUMNS)
