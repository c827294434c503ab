"""The sample episodes of a run."""

from typing import Any

import numpy as np
from hypothesis import given, settings
from numpy.typing import NDArray

import psyco
from psyco._src.logic.ast import Constraint, Formula, Signal
from psyco._src.logic.batch_monitor import compile_monitor
from psyco._src.logic.trace_check import check_path
from psyco._src.runs.sample_trajectories import Extremes, _extreme, violating_steps
from tests.logic.strategies import formulas, paths


def by_definition(formula: Formula, signals: dict[str, NDArray[Any]]) -> list[int]:
    """Return the steps at which the cost of the prefix rises, or else the last step."""
    last = len(signals["step"]) - 1
    costs = [
        check_path(formula, {name: values[: step + 1] for name, values in signals.items()}).cost
        for step in range(last + 1)
    ]
    rises = [step for step in range(1, last + 1) if costs[step] > costs[step - 1]]
    return ([0] if costs[0] > 0 and costs[-1] > costs[0] else []) + rises or [last]


@settings(max_examples=200)
@given(formulas(max_leaves=8), paths())
def test_violating_steps_are_those_at_which_the_cost_rises(formula: Formula, path: dict[str, Any]) -> None:
    signals = path | {"step": np.arange(len(path["x"]))}
    constraint = Constraint(formula, ">=", 0.5, 1.0, 0.9)
    costs = compile_monitor([formula]).prefix_costs(signals)[:, 0]
    assert violating_steps(constraint, costs) == by_definition(formula, signals)


def test_if_the_formula_is_the_unwanted_event_it_is_the_last_step() -> None:
    assert violating_steps(Constraint(Signal("a"), "<=", 0.0, 0.5, 0.9), np.array([1.0, 0.0, 0.0])) == [2]


def test_the_distance_of_an_episode_is_that_of_its_worst_state() -> None:
    """G (d >= 2 | n <= 1): by hand, (2 - d) / 2 where n is above 1, and at least -1."""
    constraint = psyco.parse("P>=0.5 [ G (d >= 2 | n <= 1) ]").probability_constraints[0]
    monitor = compile_monitor([constraint.formula])
    distance = monitor.worst_distances({"d": np.array([9.0, 2.5, 9.0]), "n": np.array([0.0, 2.0, 2.0])})
    np.testing.assert_allclose(distance, [-0.25])
    distance = monitor.worst_distances({"d": np.array([9.0, 1.0]), "n": np.array([0.0, 2.0])})
    np.testing.assert_allclose(distance, [0.5])
    eventually = compile_monitor([psyco.parse("P>=0.5 [ F d >= 2 ]").probability_constraints[0].formula])
    assert np.isnan(eventually.worst_distances({"d": np.ones(3)})).all()


def test_the_worst_violation_and_the_closest_call_of_all_samples_are_kept() -> None:
    judged = [([True], 0.0, -0.9), ([False], 2.0, 0.5), ([True], 0.0, -0.1), ([False], 7.0, 1.0)]
    assert _extreme(judged) == [3, 2]
    assert _extreme([([True], 0.0, np.nan)]) == []
    kept = Extremes()
    for satisfied, cost, distance in ((False, 3.0, 1.0), (True, 0.0, -0.5), (False, 2.0, 1.0), (True, 0.0, -0.2)):
        kept.take(satisfied, cost, distance, {"cost": cost, "distance": distance})
    assert [(each["kind"], each["cost"], each["distance"]) for each in kept.episodes] == [
        ("closest call so far", 0.0, -0.2),
        ("worst violation so far", 3.0, 1.0),
    ]
