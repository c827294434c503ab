"""The sample episodes of a run."""

from typing import Any

import numpy as np
from hypothesis import given, settings
from numpy.typing import NDArray

from psyco._src.logic.ast import Constraint, Formula, Signal
from psyco._src.logic.batch_monitor import compile_monitor
from psyco._src.logic.trace_check import check_path
from psyco._src.runs.sample_trajectories import violating_steps
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
