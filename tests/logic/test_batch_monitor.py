import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from psyco._src.core.errors import RequirementError
from psyco._src.logic import batch_monitor
from psyco._src.logic.array_eval import EMPTY_PREFIX, PathPrefix, SignalArrays
from psyco._src.logic.ast import (
    Aggregate,
    Bool,
    Compare,
    Connective,
    Not,
    Number,
    Signal,
    Temporal,
    walk,
)
from psyco._src.logic.batch_monitor import compile_monitor
from psyco._src.logic.parser import parse_formula
from psyco._src.logic.trace_check import check_path
from tests.logic import by_definition
from tests.logic.strategies import bounds, formulas, paths, state_formulas


def next_(body):
    return Temporal("X", (body,))


def finally_(body, bound=None):
    return Temporal("F", (body,), bound)


def globally(body, bound=None):
    return Temporal("G", (body,), bound)


def until(left, right, bound=None):
    return Temporal("U", (left, right), bound)


def release(left, right, bound=None):
    return Temporal("R", (left, right), bound)


def weak_until(left, right, bound=None):
    return Temporal("W", (left, right), bound)


def both(*operands):
    return Connective("&", operands)


def either(*operands):
    return Connective("|", operands)


def with_step(path):
    return path | {"step": np.arange(len(path["x"]))}


# ---- against the definition ------------------------------------------------------------------------------------


WINDOWS = ["", "<=0", "<=2", "[1,2]", "[2,5]", "[4,4]"]
OPERATORS = [
    *(f"{o}{w} a" for o in "FG" for w in WINDOWS),
    *(f"a {o}{w} b" for o in "UWR" for w in WINDOWS),
    "X a",
]


@pytest.mark.parametrize("shape", ["{}", "!({})", "X ({})", "X !({})"])
@pytest.mark.parametrize("length", [1, 3])
def test_every_operator_on_every_short_path(shape, length):
    """Exhaustive: each operator, negated and not, from the start and from within, on all paths of two flags."""
    every = np.array(list(itertools.product([False, True], repeat=2 * length)))
    batch = {"a": every[:, :length], "b": every[:, length:]}
    trees = [parse_formula(shape.format(operator)) for operator in OPERATORS]
    satisfied, cost = compile_monitor(trees)(batch)
    for row in range(len(every)):
        path = {"a": batch["a"][row], "b": batch["b"][row], "x": batch["a"][row]}
        assert satisfied[row].tolist() == [by_definition.satisfied(tree, path) for tree in trees]
        assert cost[row].tolist() == [by_definition.cost(tree, path) for tree in trees]


@settings(max_examples=300)
@given(formulas(), paths())
@example(parse_formula("x < 1 / sum(-x)"), {"x": np.array([0.0])})
@example(parse_formula("a W[2,3] b"), {name: np.array([1, 1, 1, 0]) for name in ("a", "b", "x")})
def test_the_monitor_is_the_definition_and_cost_is_zero_exactly_where_the_formula_holds(formula, path):
    check = check_path(formula, path)
    assert check.satisfied == by_definition.satisfied(formula, path)
    assert check.cost == pytest.approx(by_definition.cost(formula, path), rel=1e-12)
    assert (check.cost == 0) == check.satisfied


@pytest.mark.slow
@settings(max_examples=15)
@given(formulas(), st.lists(paths(min_size=6, max_size=6), min_size=2, max_size=2), st.booleans())
def test_jax_and_numpy_agree_on_batches_also_with_severity(formula, batch, severity):
    batch_monitor = compile_monitor([formula, Not(formula)], severity=severity)
    stacked = {name: np.stack([with_step(path)[name] for path in batch]) for name in with_step(batch[0])}
    satisfied, cost = batch_monitor(stacked)
    on_device = batch_monitor({name: jnp.asarray(array) for name, array in stacked.items()})
    assert isinstance(cost, np.ndarray)
    assert cost.dtype == np.float64
    assert isinstance(on_device[1], jax.Array)
    assert on_device[1].dtype == jnp.float32
    np.testing.assert_array_equal(satisfied, on_device[0])
    np.testing.assert_allclose(cost, on_device[1], rtol=1e-3, atol=1e-30)
    np.testing.assert_array_equal(satisfied, np.stack([~satisfied[:, 1], ~satisfied[:, 0]], axis=-1))
    for row, path in enumerate(batch):
        check = check_path(formula, path, severity=severity)
        assert (satisfied[row, 0], cost[row, 0]) == (check.satisfied, check.cost)


@settings(max_examples=200)
@given(formulas(), paths())
def test_with_severity_cost_is_zero_exactly_where_the_formula_holds(formula, path):
    check = check_path(formula, path, severity=True)
    assert check.satisfied == check_path(formula, path).satisfied
    assert (check.cost == 0) == check.satisfied
    assert check.cost >= 0


# ---- appendix B, equation by equation --------------------------------------------------------------------------

flags = st.lists(st.tuples(st.booleans(), st.booleans()), min_size=3, max_size=7)


def costs(flags):
    """c_φ1 and c_φ2 of every state."""
    return [[1 - each for each in column] for column in zip(*flags, strict=True)]


def cost_of(text, flags):
    a, b = zip(*flags, strict=True)
    return check_path(text, {"a": np.array(a), "b": np.array(b)}).cost


@given(flags)
def test_cost_of_next_is_that_of_the_first_step(flags):
    assert cost_of("X a", flags) == costs(flags)[0][1]


@given(flags, st.integers(0, 6))
def test_cost_of_globally_counts_violations(flags, m):
    c, n = costs(flags)[0], len(flags) - 1
    m = min(m, n)
    assert cost_of("G a", flags) == sum(c) == cost_of(f"G<={n} a", flags)
    assert cost_of(f"G<={m} a", flags) == sum(c[: m + 1])


@given(flags)
def test_cost_of_finally_is_that_of_true_until(flags):
    n = len(flags) - 1
    assert cost_of("F a", flags) == cost_of("true U a", flags) == cost_of(f"true U<={n} a", flags)
    assert cost_of("F a", flags) == float(all(costs(flags)[0]))


@given(flags, st.integers(0, 6))
def test_cost_of_until_follows_its_recursion(flags, m):
    (c1, c2), n = costs(flags), len(flags) - 1
    m = min(m, n)

    def rest(i, m):  # 𝒞' of appendix B, whose path starts at state i
        return 1 if m == 0 else c2[i + 1] * (c1[i + 1] + rest(i + 1, m - 1))

    assert cost_of(f"a U<={m} b", flags) == c2[0] * (c1[0] + rest(0, m))
    assert cost_of("a U b", flags) == c2[0] * (c1[0] + rest(0, n))


# ---- dualities -------------------------------------------------------------------------------------------------


def same(one, other, path, cost=True):
    a, b = check_path(one, path), check_path(other, path)
    assert a.satisfied == b.satisfied
    if cost:
        assert a.cost == b.cost


@given(formulas(3), formulas(3), bounds(), paths())
def test_dual_operators_hold_and_cost_the_same(p, q, bound, path):
    same(Not(finally_(Not(p), bound)), globally(p, bound), path)
    same(Not(globally(Not(p), bound)), finally_(p, bound), path)
    same(Not(next_(Not(p))), next_(p), path)
    same(Not(until(Not(p), Not(q), bound)), release(p, q, bound), path)
    same(Not(release(Not(p), Not(q), bound)), until(p, q, bound), path)
    same(until(Bool(True), q, bound), finally_(q, bound), path)
    same(release(Bool(False), q, bound), globally(q, bound), path)
    same(Not(both(p, q)), either(Not(p), Not(q)), path, cost=False)


@given(formulas(3), formulas(3), st.none() | bounds(), paths())
def test_weak_until_and_release_in_terms_of_until(p, q, bound, path):
    up_to = bound and type(bound)(0, bound.upper)
    weak = weak_until(p, q, bound)
    same(weak, either(until(p, q, bound), globally(p, up_to)), path, cost=False)
    if bound is None or bound.lower == 0:
        same(release(p, q, bound), weak_until(q, both(p, q), bound), path, cost=False)
    assert check_path(weak, path).cost <= check_path(until(p, q, bound), path).cost


@given(formulas(3), formulas(3), paths(min_size=4))
def test_the_unrolling_that_defines_them(p, q, path):
    until_q, release_q = until(p, q), release(p, q)
    same(until_q, either(q, both(p, next_(until_q))), path, cost=False)
    same(release_q, both(q, either(p, next_(release_q))), path, cost=False)


# ---- the end of a path -----------------------------------------------------------------------------------------


@settings(max_examples=200)
@given(formulas(), paths(), st.integers(1, 5))
def test_a_path_with_its_last_state_repeated_satisfies_the_same(formula, path, copies):
    assume(Signal("step") not in walk(formula))  # the one thing that would not repeat
    padded = {name: np.concatenate([array, np.repeat(array[-1:], copies, axis=0)]) for name, array in path.items()}
    length = len(path["x"])
    end = np.arange(length + copies) >= length - 1
    satisfied, cost = compile_monitor([formula])(padded, end=end)
    assert satisfied[0] == check_path(formula, path).satisfied
    assert (cost[0] == 0) == satisfied[0]


def test_next_in_the_last_state_is_the_last_state():
    assert check_path("X a", {"a": [True]}) == check_path("a", {"a": [True]})
    assert check_path('X X X (a & "end")', {"a": [False, True]}).satisfied


@given(state_formulas(running=False), st.lists(paths(), min_size=1, max_size=1))
def test_end_is_the_last_state(formula, singles):
    (path,) = singles
    last = {name: array[-1:] for name, array in path.items()}
    if "step" not in str(formula):
        at_end = check_path(finally_(both(parse_formula('"end"'), formula)), path)
        assert at_end.satisfied == check_path(formula, last).satisfied


def test_bounds_beyond_the_path_look_at_the_last_state_again():
    path = {"a": [True, False], "b": [False, False]}
    assert check_path("G<=9 a", path).cost == 9
    assert check_path("G[3,9] a", path).cost == 7
    assert check_path("G<=999999999 a", path).cost == 999999999
    assert check_path("a U[100000000,200000000] b", path).cost == 1e8 - 1 + 1e8 + 1 + 1
    assert check_path("F[5,9] !a", path).satisfied


def test_globally_equals_its_bound_at_the_horizon():
    rng = np.random.default_rng(0)
    path = {"x": rng.normal(size=(20, 51)), "y": rng.normal(size=(20, 51))}
    batch_monitor = compile_monitor([parse_formula("G (x > 0)"), parse_formula("G<=50 (x > 0)")])
    satisfied, cost = batch_monitor(path)
    np.testing.assert_array_equal(cost[:, 0], cost[:, 1])
    np.testing.assert_array_equal(cost[:, 0], (path["x"] <= 0).sum(axis=1))
    np.testing.assert_array_equal(satisfied, cost == 0)


# ---- numbers ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [1e-12, 1e30])
def test_float32_costs_neither_vanish_nor_overflow(scale):
    """Products over 51 states of costs far from 1, nested; a naive product is 0 or infinite."""
    texts = ["F x < 0", "F G F x < 0", "(F x < 0) | (F G y < 0)", "F (x < 0 W F y < 0)"]
    trees = [parse_formula(text) for text in texts]
    path = {name: jnp.full(51, scale, jnp.float32) for name in "xy"}
    for severity in (False, True):
        batch_monitor = compile_monitor([*trees, *map(Not, trees)], severity=severity)
        satisfied, cost = jax.jit(batch_monitor)(path)
        assert satisfied.tolist() == [False] * 4 + [True] * 4
        assert ((cost[:4] > 0) & (cost[:4] < jnp.inf)).all()
        assert (cost[4:] == 0).all()


def test_severity_is_the_distance_to_holding():
    path = {"x": [0.5, 0.0], "f": [False, False]}

    def severity(text):
        return check_path(text, path, severity=True).cost

    assert severity("x >= 2") == 1.5
    assert severity("G (x >= 2)") == 3.5
    assert severity("G (x > 0)") == 1e-6  # fails by nothing
    assert severity("!(x < 0.75)") == 0.25
    assert severity("x = 1") == 0.5
    assert severity("x != 0.5") == severity("f") == severity("!(x = 0.5)") == 1
    assert severity("!(x != 1)") == 0.5
    assert severity("x >= 1 & x >= 2") == 2.0
    assert severity("x >= 1 | x >= 2") == 0.75
    assert check_path("x >= 1 & x >= 2", path).cost == 1  # one state formula: 0 or 1


def test_a_state_formula_costs_one_as_a_whole():
    path = {"a": [False, True], "b": [False, False]}
    assert check_path("a & b", path).cost == 1
    assert check_path("G (a & b)", path).cost == 2
    assert check_path("(G a) & (G b)", path).cost == 3
    assert check_path("(G a) | (G b)", path).cost == 2


def test_numbers_keep_their_precision():
    """0.1 is 0.1, whether recorded in float32 on a device or in float64."""
    assert check_path("x <= 0.1 & x >= 0.1", {"x": np.array([0.1], np.float32)}).satisfied
    assert check_path("x <= 0.1 & x >= 0.1", {"x": [0.1]}).satisfied
    assert check_path("x - y < 0 & -x <= 0", {"x": np.array([1], np.uint8), "y": np.array([2], np.uint8)}).satisfied
    assert not check_path("x < 9007199254740993", {"x": [9007199254740993]}).satisfied


def test_dividing_by_zero_is_decided_by_the_comparison():
    assert check_path("x / y > 3", {"x": [1.0], "y": [0.0]}).satisfied
    nothing = {"x": [0.0], "y": [0.0]}
    assert not check_path("x / y > 3", nothing).satisfied
    assert check_path("!(x / y > 3)", nothing) == check_path("true", nothing)
    assert check_path("x / y > 3", nothing, severity=True).cost == 1
    assert check_path("1 / 0 > 3", nothing).satisfied


# ---- aggregates ------------------------------------------------------------------------------------------------


RUNNING = {
    "count(x > 0.5)": [0, 1, 2, 2],
    "count(step > 0)": [0, 1, 2, 3],
    "count(true)": [1, 2, 3, 4],
    "sum(x)": [0.5, 3.5, 4.5, 4.0],
    "sum(2 * x - 1)": [0, 5, 6, 4],
    "mean(x)": [0.5, 1.75, 1.5, 1.0],
    "least(x)": [0.5, 0.5, 0.5, -0.5],
    "most(x)": [0.5, 3, 3, 3],
    "most(x) - least(x)": [0, 2.5, 2.5, 3.5],
}


@pytest.mark.parametrize("xp", [np, jnp])
@pytest.mark.parametrize("term", RUNNING)
def test_an_aggregate_covers_the_states_so_far_and_is_constant_after_the_end(term, xp):
    """The last state is repeated twice."""
    path = {"x": xp.asarray([0.5, 3.0, 1.0, -0.5, -0.5, -0.5]), "step": xp.asarray([0, 1, 2, 3, 3, 3])}
    states = SignalArrays(xp, path, xp.arange(6) >= 3, (6,))
    expected = RUNNING[term]
    assert states.value(parse_formula(f"{term} = 0").left).tolist() == expected + [expected[-1]] * 2


def test_an_aggregate_fails_by_its_distance():
    path = {"x": [1.0, 0.0, 4.0]}
    assert check_path("G (count(x > 0.5) <= 1)", path, severity=True).cost == 1
    assert check_path("G (sum(x) <= 2)", path, severity=True).cost == 3
    assert check_path("F (least(x) < 0)", {"x": [0.25]}, severity=True).cost == 0.25


def test_counts_are_exact_up_to_2_to_the_24():
    """A piece of two states after a prefix of 2^24."""
    count = Aggregate("count", Signal("a"))
    past = PathPrefix(2**24, {count: jnp.int32(2**24 - 2)})
    formula = globally(Compare("=", count, Number(2.0**24 - 1)))
    cost, past = compile_monitor([formula]).known_step_costs({"a": jnp.ones(2, bool)}, jnp.zeros(2, bool), past)
    assert cost[:, 0].tolist() == [0, 1] and past.totals[count] == 2**24


def test_sums_of_float32_differ_from_float64_by_rounding_only():
    """After n states the error is at most n roundings of 2^-24 of the sum of absolute values."""
    x = np.random.default_rng(0).normal(size=1000).astype(np.float32)
    total = Aggregate("sum", Signal("x"))
    (host, device) = (
        SignalArrays(xp, {"x": xp.asarray(x)}, xp.arange(1000) == 999, (1000,)).total(total) for xp in (np, jnp)
    )
    assert host.dtype == np.float64 and device.dtype == jnp.float32
    np.testing.assert_allclose(host, np.cumsum(x, dtype=np.float64), rtol=1e-12)
    assert (abs(device - host) <= np.arange(1, 1001) * 2.0**-24 * np.cumsum(abs(x))).all()


# ---- costs by step ---------------------------------------------------------------------------------------------


def nested_monitor(formula, severity):
    return compile_monitor([formula, globally(formula), both(formula, globally(formula))], severity=severity)


@settings(max_examples=150)
@given(formulas() | state_formulas(), paths(), st.booleans())
def test_step_costs_sum_to_the_cost(formula, path, severity):
    batch_monitor, signals = nested_monitor(formula, severity), with_step(path)
    _, cost = batch_monitor(signals)
    assume(cost.max() < 1e12)  # larger ones are clipped
    by_step = batch_monitor.step_costs(signals)
    assert by_step.shape == (len(path["x"]), 3)
    assert (by_step >= 0).all()
    np.testing.assert_allclose(by_step.sum(axis=0), cost, rtol=1e-9)


@settings(max_examples=8)
@given(state_formulas(), paths(min_size=6, max_size=6), st.booleans())
def test_step_costs_agree_between_jax_and_numpy(formula, path, severity):
    batch_monitor, signals = nested_monitor(formula, severity), with_step(path)
    on_device = batch_monitor.step_costs({name: jnp.asarray(array) for name, array in signals.items()})
    assert on_device.dtype == jnp.float32
    np.testing.assert_allclose(batch_monitor.step_costs(signals), on_device, rtol=1e-3, atol=1e-30)


@pytest.mark.parametrize(
    ("formula", "severity", "costs"),
    [
        ("G x <= 1", False, [0, 1, 0, 1, 1]),
        ("G x <= 1", True, [0, 1, 0, 2, 3]),
        ("G[2,3] x <= 1", False, [0, 0, 0, 1, 0]),
        ("!F (x > 1)", False, [0, 1, 0, 1, 1]),
        ("(G x <= 1) & (G<=1 x < 1)", False, [0, 2, 0, 1, 1]),
        ("G (x <= 1 | X x <= 1)", False, [0, 0, 0, 0, 2]),  # about two states each, so the cost is at the end
        ("F x > 7", False, [0, 0, 0, 0, 1]),
        ("G<=9 x <= 1", False, [0, 0, 0, 0, 8]),  # the last state repeats
        ("G (x <= 1 | count(x > 1) <= 1)", False, [0, 0, 0, 1, 1]),
        ("G sum(x) <= 4", True, [0, 0, 0, 2, 6]),
    ],
)
def test_a_top_level_G_costs_where_a_state_fails_and_other_formulas_at_the_end(formula, severity, costs):
    batch_monitor = compile_monitor([parse_formula(formula)], severity=severity)
    found = batch_monitor.step_costs({"x": np.array([0.0, 2.0, 1.0, 3.0, 4.0])})
    assert found[:, 0].tolist() == costs


@pytest.mark.parametrize("severity", [False, True])
def test_the_conjuncts_of_a_formula_have_columns_of_their_own(severity):
    formulas = [
        "(F x > 7) & ((G x <= 1) & G<=1 x < 1)",
        "!((F x > 3) | G x < 9)",
        "x <= 1 & x < 1",
        "G (x < 4 & x < 3)",
    ]
    batch_monitor = compile_monitor([parse_formula(formula) for formula in formulas], severity=severity)
    signals = {"x": np.array([0.0, 2.0, 1.0, 3.0, 4.0])}
    parts = batch_monitor.by_conjunct.step_costs(signals)
    assert parts.shape == (5, 7)  # G (φ & ψ) is one conjunct, and so is a formula about one state
    np.testing.assert_allclose(np.add.reduceat(parts, [0, 3, 5, 6], axis=1), batch_monitor.step_costs(signals))
    assert (parts[:4, 0] == 0).all() and parts[4, 0] > 0, "F costs at the end"
    assert np.flatnonzero(parts[:, 1]).tolist() == [1, 3, 4], "G costs where it fails"


def test_without_formulas_there_are_no_step_costs():
    assert compile_monitor([]).step_costs({"x": np.zeros((2, 3))}).shape == (2, 3, 0)


# ---- inside compiled code --------------------------------------------------------------------------------------

COMPILED = [
    "G (x >= 0.5 | a)",
    "F<=3 (x > 1 & obs[2] < 2)",
    "G (a => F<=2 b)",
    "a W[1,4] b",
    '(a U "end") & !(G F b)',
    'F ("end" & count(a & x > 0) >= 2 & mean(obs[1]) < 0.2)',
    "G (most(x) - least(x) <= 2 => sum(obs[0]) < 1)",
]


def test_the_monitor_runs_under_jit_vmap_and_scan():
    rng = np.random.default_rng(1)
    batch_monitor = compile_monitor([parse_formula(text) for text in COMPILED])
    batch = {
        "x": rng.normal(size=(9, 7)).astype(np.float32),
        "a": rng.random((9, 7)) < 0.7,
        "b": rng.random((9, 7)) < 0.3,
        "obs": rng.normal(size=(9, 7, 3)).astype(np.float32),
    }
    end = np.arange(7) >= rng.integers(0, 7, size=(9, 1))
    expected = batch_monitor(batch, end=end)
    for compiled in (
        jax.jit(jax.vmap(batch_monitor)),
        jax.jit(lambda s, e: jax.lax.scan(lambda _, each: (None, batch_monitor(*each)), None, (s, e))[1]),
    ):
        satisfied, cost = compiled(batch, end)
        np.testing.assert_array_equal(satisfied, expected[0])
        np.testing.assert_allclose(cost, expected[1])


def test_a_monitor_knows_the_signals_it_needs():
    batch_monitor = compile_monitor([parse_formula(text) for text in COMPILED])
    assert batch_monitor.signals == {"x", "a", "b", "obs"}
    assert compile_monitor([parse_formula('G ("crashed" | "end")')]).signals == {"crashed"}


def test_no_formula_and_no_signal():
    satisfied, cost = compile_monitor([])({"step": np.zeros((4, 7))})
    assert satisfied.shape == cost.shape == (4, 0)
    satisfied, _ = compile_monitor([parse_formula('F "end"')])({"step": np.zeros((4, 7))})
    assert satisfied.all()
    with pytest.raises(RequirementError, match="at least one signal"):
        compile_monitor([Bool(True)])({})


def test_nested_equivalences_stay_small():
    text = "F a"
    for _ in range(40):
        text = f"({text}) <=> (F b)"
    assert check_path(text, {"a": [True], "b": [True]}).satisfied


# ---- invalid recorded paths -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("formula", "signals", "says"),
    [
        ("G x > 0", {"x": [1.0, 2.0], "y": [1.0]}, "differ in length: x 2, y 1"),
        ("G x > 0", {"x": []}, "path is empty: x has no entries"),
        ("G x > 0", {"x": 3.0}, "path is empty: x"),
        ("true", {}, "path is empty"),
        ("G z > 0", {"x": [1.0]}, "unknown signal 'z' at line 1, column 3(.|\n)*the path offers: step, x"),
        ("reward > 0", {"x": [1.0]}, "unknown signal 'reward'"),
        ("G x > 0", {"x": [1.0, np.nan]}, "signal 'x' is NaN at index 1"),
        ("G x[1] > 0", {"x": [[1.0, 2.0], [1.0, np.nan]]}, "signal 'x' is NaN at index 1"),
        ("G x", {"x": [1.0, 2.0]}, "signal 'x' is a number"),
        ("G x > 0", {"x": [True, False]}, "signal 'x' is true or false"),
        ("G x > 0", {"x": [[1.0], [2.0]]}, r"signal 'x' has 1 entry(.|\n)*write x\[0\]"),
        ("G x > 0", {"x": [[1], [0]]}, "signal 'x' has 1 entry"),
        ("G (x > 0 & y > 0)", {"x": [[1, 0], [0, 0]], "y": [1, 1]}, "signal 'x' has 2 entries"),
        ("G (x[0] > 0 & y > 0)", {"x": [1, 0], "y": [1, 1]}, "signal 'x' is a single value"),
        ("G x[2] > 0", {"x": [[1.0], [0.0]]}, "out of range"),
        ("G x > 0", {"x": ["near", "far"]}, "no array of numbers"),
        ("G x >", {"x": [1.0]}, "ends too early"),
    ],
)
def test_check_path_refuses_invalid_paths(formula, signals, says):
    with pytest.raises(RequirementError, match=says):
        check_path(formula, signals)


def test_an_index_beyond_a_vector_is_never_clamped():
    with pytest.raises(RequirementError, match=r"index 2 of signal 'x' is out(.|\n)*has 1 entry; write x\[0\]"):
        compile_monitor([parse_formula("G x[2] > 0")])({"x": np.ones((4, 1))})


def test_check_path_adds_the_step_signal_unless_it_is_given():
    assert check_path("F step = 2", {"x": [0, 0, 0]}).satisfied
    assert not check_path("F step = 2", {"step": [5, 6, 7]}).satisfied
    assert check_path("G x", {"x": [1, 1]}).satisfied  # Booleans recorded as numbers
    assert check_path("G x > 0", {"x": [1, 1], "unused": [np.nan, 0]}).satisfied


# ---- paths that grow -------------------------------------------------------------------------------------------


@settings(max_examples=200)
@given(formulas(), paths(), st.booleans(), st.sampled_from([1, batch_monitor.PREFIX_BATCH_BYTES]))
def test_a_prefix_costs_the_same_as_a_separate_path(formula, path, severity, memory):
    signals = with_step(path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batch_monitor, "PREFIX_BATCH_BYTES", memory)  # one by one, or all at once
        found = compile_monitor([formula], severity=severity).prefix_costs(signals)
    alone = [
        check_path(formula, {name: array[: t + 1] for name, array in signals.items()}, severity=severity).cost
        for t in range(len(path["x"]))
    ]
    np.testing.assert_allclose(found[:, 0], alone, rtol=1e-9)


@settings(max_examples=100)
@given(state_formulas(), bounds(largest=5), paths(min_size=6), st.booleans(), st.integers(0, 6))
def test_the_cost_of_a_top_level_G_is_known_piece_by_piece(formula, bound, path, severity, cut):
    batch_monitor = compile_monitor([both(globally(formula, bound), globally(formula))], severity=severity)
    signals = with_step(path)
    end = np.arange(len(path["x"])) == len(path["x"]) - 1
    pieces = [slice(0, cut), slice(cut, None)]
    known, past = [], EMPTY_PREFIX
    for piece in pieces:
        part = {name: array[piece] for name, array in signals.items()}
        costs, past = batch_monitor.known_step_costs(part, end[piece], past)
        known.append(costs)
    np.testing.assert_allclose(np.concatenate(known), batch_monitor.step_costs(signals), rtol=1e-9)


def test_other_costs_are_unknown_before_the_end():
    batch_monitor = compile_monitor([parse_formula("F x > 7"), parse_formula("G (x > 7 | X x > 7)")])
    costs, past = batch_monitor.known_step_costs({"x": np.zeros(3)}, np.zeros(3, bool), EMPTY_PREFIX)
    assert not costs.any() and past == PathPrefix(3, {})


def test_step_costs_take_linear_time_in_nested_equivalences():
    """Operands are shared: 45 levels have 2^45 paths to the innermost one."""
    text = "x >= 0"
    for _ in range(45):
        text = f"(y >= 0) <=> ({text})"
    signals = {"x": np.array([1.0, -1.0]), "y": np.array([1.0, 1.0])}
    shares = compile_monitor([parse_formula(f"G ({text})")], severity=True).step_costs(signals)[:, 0]
    assert (shares > 0).tolist() == [False, True]
