"""The runtime monitor: correct, as early as possible, with a description of the remainder."""

import copy
import itertools
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import psyco
from psyco import Outlook
from psyco._src.logic import anticipation
from psyco._src.logic.ast import (
    Compare,
    Connective,
    Constraint,
    Expectation,
    Label,
    LongRun,
    Not,
    Number,
    Requirement,
    Signal,
    Temporal,
)
from psyco._src.logic.batch_monitor import compile_monitor
from psyco._src.logic.parser import parse_formula
from psyco._src.logic.runtime_monitor import episode_verdict, replay_episode
from psyco._src.logic.trace_check import check_path
from tests.logic import by_definition
from tests.logic.strategies import bounded, bounds, formulas, paths, quantities

DANCE = "P>=0.85 [ G (distance >= 0.1 | collisions <= 1) ] & C>=0.98"


def requiring(formula) -> Requirement:
    return Requirement(constraints=(Constraint(formula, ">=", 0.5, 1.0),))


def state(path, i):
    return {name: values[i] for name, values in path.items()}


def outlooks(formula, path, **arguments):
    """The outlook after each state; the last one ends the path."""
    monitor, last = psyco.Monitor(requiring(formula), **arguments), len(path["x"]) - 1
    return [monitor.update(state(path, i), end=i == last).constraints[0].outlook for i in range(last + 1)]


def of(satisfied: bool) -> Outlook:
    return Outlook.SATISFIED if satisfied else Outlook.VIOLATED


ZERO_TIMES_INFINITY = parse_formula("y * (x / y) > x")


@settings(max_examples=200)
@given(formulas(), paths())
@example(ZERO_TIMES_INFINITY, {"x": np.array([0.5]), "y": np.array([0.0])})
def test_it_agrees_with_the_offline_monitor_on_every_prefix(formula, path):
    whole = of(check_path(formula, path).satisfied)
    for n in range(1, len(path["x"]) + 1):
        prefix = {name: values[:n] for name, values in path.items()}
        *before, last = outlooks(formula, prefix)
        offline = check_path(formula, prefix)
        assert last is of(offline.satisfied)
        assert set(before) <= {Outlook.OPEN, whole}  # a decision holds for every continuation
        (found,) = replay_episode(psyco.Monitor(requiring(formula)), prefix)
        assert found.cost in (None, offline.cost)


# ---- as early as possible: against all continuations of an episode ---------------------------------------------


class World(NamedTuple):
    """One of eight states: two Boolean signals, and a counter at 1 or 2."""

    a: bool
    b: bool
    n: int


WORLDS = [World(*each) for each in itertools.product((True, False), (True, False), (1, 2))]
ATOMS = [Signal("a"), Signal("b"), Label("end"), Compare("<=", Signal("n"), Number(1.0))]


def small_formulas():
    def grow(inner):
        return st.one_of(
            st.builds(Connective, st.sampled_from(["&", "|", "<=>"]), st.tuples(inner, inner)),
            st.builds(Not, inner),
            st.builds(Temporal, st.just("X"), st.tuples(inner)),
            *bounded(inner, bounds(3)),
        )

    return st.recursive(st.sampled_from(ATOMS), grow, max_leaves=5)


def arrays(rows):
    """Paths `[B]` of the same length as signals `[B, T]`."""
    return {name: np.array([[getattr(w, name) for w in row] for row in rows]) for name in World._fields}


def possible(formula, prefix, horizon):
    """The verdicts of all continuations of a prefix."""
    monitor, found, futures = compile_monitor([formula]), set(), [prefix]
    for _ in range(horizon + 1 - len(prefix)):
        futures = [[*f, w] for f in futures for w in WORLDS if not f or w.n >= f[-1].n]
        signals = arrays(futures)
        found |= set(monitor(signals | {"step": np.zeros_like(signals["n"])})[0][:, 0].tolist())
    return found


@settings(max_examples=60)
@given(small_formulas(), st.lists(st.sampled_from(WORLDS), max_size=2), st.integers(2, 3))
def test_a_verdict_comes_as_soon_as_all_continuations_agree(formula, prefix, horizon):
    prefix = sorted(prefix, key=lambda world: world.n)  # counters never fall
    monitor = psyco.Monitor(requiring(formula), horizon=horizon, counters=["n"])
    status = monitor.start()
    for world in prefix:
        status = monitor.update(world._asdict())
    ahead = possible(formula, prefix, horizon)
    assert status.outlook is (Outlook.OPEN if len(ahead) == 2 else of(ahead.pop()))


@pytest.mark.parametrize(
    ("text", "path", "decided"),
    [
        ("F<=5 a", {"a": [False] * 7}, 5),
        ("F (\"end\" & count(a) <= 1)", {"a": [True, True, True, False]}, 1),
        ("F count(a) >= 2", {"a": [True, False, True, False]}, 2),
        ("G[3,4] most(x) < 2", {"x": [0, 5, 0, 0, 0, 0]}, 1),
        ("F[3,4] least(x) > 2", {"x": [5, 1, 5, 5, 5, 5]}, 1),
        ("F (step < 1 & a)", {"a": [False, False, True]}, 1),
        ("F (a & !a)", {"a": [True] * 3}, -1),
        ("G (a => F<=2 b)", {"a": [True] * 4, "b": [False] * 4}, 2),
    ],
)  # fmt: skip
def test_a_decision_is_made_at_the_earliest_step(text, path, decided):
    (found,) = replay_episode(psyco.Monitor(f"P>=0.5 [ {text} ]"), path)
    assert found.decided == decided


def test_an_episode_is_violated_with_its_first_constraint_and_satisfied_with_its_last():
    path = {"a": [False, True, False, False], "b": [True, True, False, True]}
    for text, found in (
        ("P>=0.5 [ F a ]; P>=0.5 [ F !b ]; R{b}<=1 [ C ]", (Outlook.SATISFIED, 2)),
        ("P>=0.5 [ F a ]; P>=0.5 [ G b ]; P<=0.5 [ F a ]", (Outlook.VIOLATED, 1)),
        ("P>=0.5 [ true ]", (Outlook.SATISFIED, 0)),
        ("R{b}<=1 [ C ]", None),
    ):
        assert episode_verdict(psyco.Monitor(text), path) == found


def test_the_horizon_is_anticipated():
    for horizon, last in ((3, Outlook.VIOLATED), (4, Outlook.OPEN)):
        monitor = psyco.Monitor("P>=0.5 [ F (a & X (!a & X a)) ]", horizon=horizon)
        statuses = [monitor.update({"a": False}) for _ in range(2)]
        assert [each.outlook for each in statuses] == [Outlook.OPEN, last]


def test_beyond_the_search_limit_a_verdict_comes_later(monkeypatch):
    text, path = "P>=0.5 [ F (a & !a) ]", {"a": [True] * 3}
    monkeypatch.setattr(anticipation, "MAX_SEARCHED_STATES", 0)
    assert replay_episode(psyco.Monitor(text), path)[0].decided == 2
    monkeypatch.setattr(anticipation, "MAX_PROPOSITIONS", 0)
    assert replay_episode(psyco.Monitor(text), path)[0].decided == 2


# ---- remainders, values, cache ------------------------------------------------------------------------------------


def test_the_remainder_is_described_in_words():
    monitor = psyco.Monitor(DANCE, counters=["collisions"])
    left = [monitor.start().constraints[0].remaining]
    for distance, collisions in ((0.5, 0), (0.05, 1), (0.2, 2), (0.05, 3)):
        left.append(monitor.update({"distance": distance, "collisions": collisions}).constraints[0].remaining)
    assert left == [
        "distance >= 0.1 or at most 1 more collisions, in every state from now on",
        "distance >= 0.1 or at most 1 more collisions, in every state from now on",
        "distance >= 0.1 or at most 0 more collisions, in every state from now on",
        "distance >= 0.1, in every state from now on",
        "nothing",
    ]


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("F<=3 a", "a, in some of the next 3 states"),
        ("F<=1 a", "a, in the next state"),
        ("b U a", "a, in some state from now on, and b until then"),
        ("G count(a) < 2", "fewer than 2 more states with a, in every state from now on"),
        ("G (b => F<=2 a)", "((not b or (a, in some state within 2 steps)), in every state from now on) and "
                            "(a, in some of the next 2 states)"),
        ("(F[2,3] a) | (G b)", "(a, in some state 2 to 3 steps from now) or (b, in every state from now on)"),
        ("b W (a & X a)", "b, in every state from now on before one with (a and (a, a step later))"),
    ],
)  # fmt: skip
def test_every_operator_has_words(text, left):
    status = psyco.Monitor(f"P>=0.5 [ {text} ]").update({"a": False, "b": True})
    assert status.constraints[0].remaining == left
    assert left in str(status)


@settings(max_examples=100)
@given(quantities(), paths())
def test_expected_values_show_the_value_so_far(quantity, path):
    monitor = psyco.Monitor(Requirement(constraints=(Expectation(quantity, "<=", upper=1.0),)))
    for n in range(1, len(path["x"]) + 1):
        found = monitor.update(state(path, n - 1)).constraints[0]
        value, _ = by_definition.measured(quantity, {k: v[:n] for k, v in path.items()})
        steps = max(n - 1, 1) if isinstance(quantity.over, LongRun) else 1
        assert found.outlook is Outlook.OPEN and found.decided is None
        if "end" not in str(quantity):  # what is not the last state yet is not the end
            assert found.value == pytest.approx(value / steps, nan_ok=True)


def test_running_aggregates_are_shown():
    monitor = psyco.Monitor("P>=0.5 [ G (count(x > 1) <= 3 & mean(x) < 9 & least(x) >= 0) ]")
    for x in (1.0, 2.0, 6.0):
        status = monitor.update({"x": x})
    assert status.aggregates == {"count(x > 1)": 2, "mean(x)": 3.0, "least(x)": 1.0}


def test_a_formula_bounded_from_above_is_negated():
    monitor = psyco.Monitor("P<=0.1 [ F a ]; P>=0.5 [ F a ]; R{x}<=3 [ C ]")
    status = monitor.update({"a": True, "x": 2.0})
    assert [each.outlook for each in status.constraints] == [
        Outlook.VIOLATED,
        Outlook.SATISFIED,
        Outlook.OPEN,
    ]
    assert status.outlook is Outlook.VIOLATED


def test_the_cache_of_states_is_bounded(monkeypatch):
    monkeypatch.setattr(anticipation, "MAX_CACHED_STATES", 50)
    monitor = psyco.Monitor("P>=0.5 [ G (a => F[6,9] b) ]")
    rng = np.random.default_rng(0)
    for _ in range(400):
        monitor.update({"a": rng.random() < 0.5, "b": True})
    (tracker,) = monitor._trackers
    assert len(tracker.future._states) < 200


def test_repeated_deadlines_need_one_state_per_step_of_the_window():
    monitor = psyco.Monitor("P>=0.5 [ G (a => F<=200 b) ]")
    for i in range(600):
        monitor.update({"a": i % 3 == 0, "b": i % 97 == 0})
    (tracker,) = monitor._trackers
    assert len(tracker.future._states) <= 2 * 202


# ---- bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("signals", "words"),
    [
        ({"collisions": 0}, "no value for the signal 'distance' in state 0"),
        ({"distance": float("nan"), "collisions": 0}, "the signal distance is nan in state 0"),
        ({"distance": 1.0, "collisions": float("inf")}, "the signal collisions is inf"),
        ({"distance": "far", "collisions": 0}, "the signal distance is 'far'"),
        ({"distance": None, "collisions": 0}, "the signal distance is None"),
        ({"distance": np.ones(2), "collisions": 0}, "the signal distance is array"),
        ({"distance": np.ones(1), "collisions": 0}, r"the signal distance is array[\s\S]*write distance\[0]"),
    ],
)
def test_invalid_values_are_refused(signals, words):
    monitor = psyco.Monitor(DANCE)
    with pytest.raises(psyco.RequirementError, match=words.replace("(", r"\(")):
        monitor.update(signals)
    assert monitor.update({"distance": 1.0, "collisions": 0}).step == 0  # the refused state was not counted


def test_a_refused_state_changes_no_aggregate():
    monitor = psyco.Monitor("P>=0.5 [ G (hits <= 9 & count(near) <= 1) ]", counters=["hits"])
    monitor.update({"near": True, "hits": 2})
    for wrong in ({"near": True, "hits": 1}, {"near": np.ones(1), "hits": 2}):
        with pytest.raises(psyco.RequirementError, match=r"fell from 2|near is array"):
            monitor.update(wrong)
    status = monitor.update({"near": False, "hits": 2})
    assert status.aggregates == {"count(near)": 1} and status.step == 1


def test_a_vector_is_read_by_its_entries():
    monitor = psyco.Monitor("P>=0.5 [ G (abs(obs[1]) < 1 & up) ]")
    assert monitor.update({"obs": [9.0, 0.5], "up": True}).outlook is Outlook.OPEN
    with pytest.raises(psyco.RequirementError, match=r"obs\[1\] is \[9.0\](.|\n)*it has 1 entry; write obs\[0\]"):
        monitor.update({"obs": [9.0], "up": True})
    with pytest.raises(psyco.RequirementError, match="the signal up is 'yes'"):
        monitor.update({"obs": [9.0, 0.5], "up": "yes"})


def test_no_update_after_the_end_of_an_episode():
    monitor = psyco.Monitor(DANCE, horizon=1)
    fine = {"distance": 1.0, "collisions": 0}
    assert [monitor.update(fine).over for _ in range(2)] == [False, True]
    with pytest.raises(psyco.RequirementError, match=r"over\ncall start"):
        monitor.update(fine)
    assert monitor.start().outlook is Outlook.OPEN and monitor.update(fine).step == 0


def test_a_counter_that_falls_is_refused():
    monitor = psyco.Monitor(DANCE, counters=["collisions"])
    monitor.update({"distance": 1.0, "collisions": 2})
    with pytest.raises(psyco.RequirementError, match="'collisions' fell from 2 to 1 at step 1"):
        monitor.update({"distance": 1.0, "collisions": 1})


def test_counters_are_names_of_numbers():
    with pytest.raises(psyco.RequirementError, match=r"counters must be a list of names, such as \['collisions'\]"):
        psyco.Monitor("P>=0.9 [ G c <= 1 ]", counters="collisions")
    with pytest.raises(psyco.RequirementError, match="counters must be a list of names"):
        psyco.Monitor("P>=0.9 [ G c <= 1 ]", counters=None)
    with pytest.raises(psyco.RequirementError, match="the signals in state 0 must go by name; got None"):
        psyco.Monitor("P>=0.9 [ G c <= 1 ]").update(None)
    monitor = psyco.Monitor("P>=0.9 [ G obs[0] <= 1 ]", counters=["obs"])
    for state in ([1.0, 0.0], [0.0, 0.0]):
        assert monitor.update({"obs": np.array(state)}).outlook is Outlook.OPEN


@pytest.mark.parametrize("horizon", [0, -1, 2.5, True])
def test_a_horizon_is_a_number_of_steps(horizon):
    with pytest.raises(psyco.RequirementError, match="horizon must be a whole number"):
        psyco.Monitor(DANCE, horizon=horizon)


@pytest.mark.parametrize(
    "text",
    [
        "G (low | hits <= 1)",
        "G (count(low) <= 2)",
        "G (hits <= 1 & count(low) <= 2)",
        "(G hits <= 1) | (G count(low) <= 1)",
        "G<=3 (hits <= 0 | low)",
        "F (hits >= 2)",
    ],
)
def test_critical_means_that_some_next_state_violates(text):
    """By trying all next states: both values of `low`, and `hits` with and without one more."""
    rng, requirement = np.random.default_rng(0), psyco.parse(f"P>=0.5 [ {text} ]")
    known = {True: 0, False: 0}
    for _ in range(40):
        monitor, hits = psyco.Monitor(requirement, horizon=5, counters=["hits"]), 0
        for step in range(5):
            hits += int(rng.random() < 0.3)
            path = [{"low": bool(rng.random() < 0.5), "hits": hits}]
            monitor.update(path[0])
            ahead = []
            for low, more in itertools.product((False, True), (0, 1)):
                twin = copy.deepcopy(monitor)
                ahead.append(twin.update({"low": low, "hits": hits + more}).outlook is Outlook.VIOLATED)
            expected = any(ahead)
            assert monitor.critical == expected, (text, step)
            known[expected] += 1
    assert all(known.values())


def test_a_fresh_copy_monitors_a_separate_episode():
    monitor = psyco.Monitor(f'{DANCE}; P>=0.5 [ F ("end" & count(distance < 0.1) <= 1) ]', horizon=9)
    near, far = {"distance": 0.0, "collisions": 5}, {"distance": 1.0, "collisions": 0}
    monitor.update(near)
    other = monitor.fresh_copy()
    assert other.update(far).outlook is Outlook.OPEN
    status = monitor.update(far)
    assert [status.step, *status.aggregates.values()] == [1, 1] and status.outlook is Outlook.VIOLATED
    status = other.update(far)
    assert [status.step, *status.aggregates.values()] == [1, 0] and status.outlook is Outlook.OPEN
