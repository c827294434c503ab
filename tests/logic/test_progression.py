"""The automaton of a formula, fed state by state, agrees with the definition on whole paths."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings

from psyco._src.logic.array_eval import SignalArrays
from psyco._src.logic.ast import Bound, Not, Signal, Temporal
from psyco._src.logic.batch_monitor import compile_monitor
from psyco._src.logic.nnf import to_nnf
from psyco._src.logic.parser import parse_formula
from psyco._src.logic.progression import Automaton, Obligation, _implies, state_formulas
from tests.logic import by_definition
from tests.logic.strategies import formulas, paths


def read(formula, path):
    """Feed a path to the automaton, the last state as the one that repeats forever."""
    length = len(path["x"])
    automaton = Automaton([formula])
    end = np.arange(length) == length - 1
    states = SignalArrays(np, path | {"step": np.arange(length)}, end, (length,))
    letters = [tuple(row) for row in automaton.letters(states).tolist()]
    progress = automaton.start
    for letter in letters[:-1]:
        progress = automaton.step(progress, letter)
    return automaton.verdicts(progress, letters[-1])[0]


@settings(max_examples=400)
@given(formulas(), paths())
def test_progression_equals_the_definition(formula, path):
    assert read(formula, path) == by_definition.satisfied(formula, path)


def test_equal_remainders_are_recognised():
    automaton = Automaton([parse_formula("G (a => F<=3 b)")])
    seen = {automaton.start}
    for _ in range(40):
        seen |= {automaton.step(p, letter) for p in seen for letter in ((True, False), (False, False), (False, True))}
    assert len(seen) < 20  # the start, true while nothing is due, false, and deadlines


def test_a_violated_safety_property_stays_decided():
    automaton = Automaton([parse_formula("G a")])
    broken = automaton.step(automaton.start, (False,))
    assert automaton.decided(broken) and not automaton.decided(automaton.step(automaton.start, (True,)))
    assert automaton.step(broken, (True,)) == broken
    assert automaton.verdicts(broken, (True,)) == (False,)


def test_atoms_are_the_largest_state_formulas_each_once():
    formula = parse_formula("G (a & b => F (a & b)) | X !(b | x > 1)")
    assert [str(atom) for atom in state_formulas([formula])] == ["a & b", "!(b | x > 1)"]


OPERANDS = Signal("a"), Signal("b")


def unrolled(operator, bound):
    return Not(Temporal("W", OPERANDS, bound)) if operator == "M" else Temporal(operator, OPERANDS, bound)


@pytest.mark.parametrize("operator", "UWRM")
def test_an_obligation_implies_a_weaker_one_of_the_same_operator(operator):
    """Exhaustive: on all paths of two Boolean signals, for all bounds of up to three steps."""
    switches = np.array(list(itertools.product((False, True), repeat=8))).reshape(-1, 2, 4)
    bounds = [(lower, upper) for upper in range(4) for lower in range(upper + 1)]
    holds = compile_monitor([unrolled(operator, Bound(*each)) for each in bounds])(
        {"a": switches[:, 0], "b": switches[:, 1]}
    )[0]
    node = to_nnf(unrolled(operator, Bound(0, 3)), False)
    for one, other in itertools.product(range(len(bounds)), repeat=2):
        implied = _implies(Obligation(node, *bounds[one]), Obligation(node, *bounds[other]))
        assert implied == bool((~holds[:, one] | holds[:, other]).all())
