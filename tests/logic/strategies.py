"""Hypothesis strategies for formulas, requirements and paths.

Strategies are cached: making one takes longer than drawing from it.
"""

from functools import cache

import numpy as np
from hypothesis import strategies as st

from psyco._src.logic.ast import (
    Aggregate,
    Arith,
    Bool,
    Bound,
    Call,
    Compare,
    Connective,
    Constraint,
    Expectation,
    Goal,
    Instant,
    Label,
    LongRun,
    Minus,
    Not,
    Number,
    Quantity,
    Question,
    Reaching,
    Requirement,
    Signal,
    Temporal,
    Total,
)

NUMBERS = ("x", "y")  # signals that are numbers,
FLAGS = ("a", "b")  # Booleans,
VECTOR = "obs"  # and a vector of 3

values = st.sampled_from([0.0, 0.5, 1.0, 2.0, 3.0])


@cache
def terms(running=True):
    """Terms, with aggregates if `running`."""
    signals = st.sampled_from([*map(Signal, NUMBERS), Signal(VECTOR, 0), Signal(VECTOR, 2), Signal("step")])
    leaves = signals | values.map(Number)
    return st.recursive(
        leaves | aggregates() if running else leaves,
        lambda inner: st.one_of(
            inner.map(Minus),
            st.builds(Arith, st.sampled_from("+-*/"), inner, inner),
            inner.map(lambda t: Call("abs", (t,))),
            st.builds(Call, st.sampled_from(["min", "max"]), st.lists(inner, min_size=2, max_size=3).map(tuple)),
        ),
        max_leaves=4,
    )


@cache
def aggregates():
    numbers = st.builds(
        Aggregate,
        st.sampled_from(["sum", "mean", "least", "most"]),
        st.deferred(lambda: terms(running=False)),
    )
    return numbers | st.builds(Aggregate, st.just("count"), st.deferred(lambda: state_formulas(running=False)))


@cache
def atoms(running=True):
    return st.one_of(
        st.sampled_from(FLAGS).map(Signal),
        st.sampled_from([*FLAGS, "end"]).map(Label),
        st.booleans().map(Bool),
        st.builds(Compare, st.sampled_from(["<", "<=", ">", ">=", "=", "!="]), terms(running), terms(running)),
    )


def _connected(inner):
    some = st.lists(inner, min_size=2, max_size=3).map(tuple)
    nary = [st.builds(Connective, st.just(operator), some) for operator in ("&", "|")]
    binary = [st.builds(Connective, st.just(operator), st.tuples(inner, inner)) for operator in ("=>", "<=>")]
    return [inner.map(Not), *nary, *binary]


@cache
def state_formulas(running=True):
    return st.recursive(atoms(running), lambda inner: st.one_of(_connected(inner)), max_leaves=4)


@cache
def bounds(largest=8):
    pairs = st.tuples(st.integers(0, largest), st.integers(0, largest))
    return st.none() | pairs.map(lambda pair: Bound(*sorted(pair)))


def _temporal(inner):
    return [st.builds(Temporal, st.just("X"), st.tuples(inner)), *bounded(inner, bounds())]


def bounded(inner, windows):
    """Every temporal operator that may have a bound."""
    unary = [st.builds(Temporal, st.just(operator), st.tuples(inner), windows) for operator in "FG"]
    pairs = st.tuples(inner, inner)
    return [*unary, *(st.builds(Temporal, st.just(operator), pairs, windows) for operator in "UWR")]


@cache
def formulas(max_leaves=6):
    return st.recursive(atoms(), lambda inner: st.one_of(*_connected(inner), *_temporal(inner)), max_leaves=max_leaves)


probabilities = st.floats(0.0, 1.0)


@st.composite
def constraints(draw, name=None):
    low, high = sorted(draw(st.tuples(probabilities, probabilities)))
    comparison = draw(st.sampled_from([">=", ">", "<=", "<", "in"]))
    if (comparison == ">" and low == 1) or (comparison == "<" and high == 0):
        comparison = "in"
    if ">" in comparison:
        high = 1.0
    if "<" in comparison:
        low = 0.0
    return Constraint(draw(formulas()), comparison, low, high, draw(probabilities), name)


@cache
def quantities():
    """Quantities, and shares of time."""
    over = st.one_of(
        st.none().map(Total),
        st.integers(0, 8).map(Total),
        st.integers(0, 8).map(Instant),
        state_formulas().map(Reaching),
    )
    bodies = terms().filter(lambda term: not isinstance(term, Number)) | state_formulas()
    levels = st.none() | st.floats(0.0, 1.0, exclude_min=True, exclude_max=True)
    return st.one_of(
        st.builds(Quantity, bodies, over, levels),
        st.builds(Quantity, bodies, st.just(LongRun())),
        state_formulas().map(lambda f: Quantity(f, LongRun(share=True))),
    )


intervals = st.lists(st.floats(-1e9, 1e9), min_size=2, max_size=2, unique=True).map(lambda x: tuple(sorted(x)))


@st.composite
def expectations(draw, name=None):
    quantity = draw(quantities())
    comparison = draw(st.sampled_from([">=", ">", "<=", "<", "in"][: 5 if quantity.cvar is None else 4]))
    within, low, high = draw(st.none() | intervals), *draw(intervals)
    if quantity.over == LongRun(share=True):
        within, low, high = None, 0.25, 0.75
    lower = low if ">" in comparison or comparison == "in" else None
    upper = high if "<" in comparison or comparison == "in" else None
    if quantity.over == LongRun(share=True):
        lower, upper = 0.0 if lower is None else lower, 1.0 if upper is None else upper
    lower, upper = -np.inf if lower is None else lower, np.inf if upper is None else upper
    return Expectation(quantity, comparison, lower, upper, draw(probabilities), within, name)


@st.composite
def questions(draw, name=None):
    subject = draw(formulas() | quantities())
    unbounded = isinstance(subject, Quantity) and subject.over != LongRun(share=True)
    within = draw(st.none() | intervals) if unbounded else None
    is_cvar = isinstance(subject, Quantity) and subject.cvar is not None
    best = None if is_cvar else draw(st.sampled_from([None, "max", "min"]))
    return Question(subject, best, draw(probabilities), within, name)


@st.composite
def requirements(draw):
    pool = st.none() | st.text(st.characters(exclude_characters='"\n', exclude_categories=["Cs"]), max_size=5)
    names = draw(st.lists(pool, max_size=4, unique_by=lambda name: name if name is not None else object()))
    goal = Goal(draw(st.booleans()), names.pop() if names else None)
    stated = tuple(draw(constraints(name) | expectations(name)) for name in names[:2])
    return Requirement(goal, stated, tuple(draw(questions(name)) for name in names[2:]))


@st.composite
def paths(draw, min_size=1, max_size=7):
    """Signals of one recorded path, without `step`: dict of arrays `[n+1]` (`obs`: `[n+1, 3]`)."""
    length = draw(st.integers(min_size, max_size))
    row = st.lists(values, min_size=length, max_size=length)
    path = {name: np.array(draw(row)) for name in NUMBERS}
    path |= {name: np.array(draw(st.lists(st.booleans(), min_size=length, max_size=length))) for name in FLAGS}
    return path | {VECTOR: np.array([draw(row) for _ in range(3)]).T}
