"""rtamt, another STL monitor, as an oracle where both definitions agree.

rtamt's trace just ends, ours repeats its last state. So rtamt gets the path with as many copies of the last state
as the bounds can look ahead, and unbounded operators stand over state formulas only. Its robustness is compared by
sign; no value is 0.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from psyco._src.logic.trace_check import check_path

pytestmark = pytest.mark.extra("rtamt")

LARGEST = 3  # bound
NESTED = 3  # levels of bounded operators

states = st.recursive(
    st.sampled_from([("x > 0", "(x > 0)"), ("y < 0", "(y < 0)")]),
    lambda inner: st.one_of(
        inner.map(lambda p: (f"!({p[0]})", f"not({p[1]})")),
        st.tuples(inner, inner).map(lambda p: (f"({p[0][0]}) & ({p[1][0]})", f"(({p[0][1]}) and ({p[1][1]}))")),
        st.tuples(inner, inner).map(lambda p: (f"({p[0][0]}) => ({p[1][0]})", f"(({p[0][1]}) implies ({p[1][1]}))")),
    ),
    max_leaves=3,
)
windows = st.tuples(st.integers(0, LARGEST), st.integers(0, LARGEST)).map(sorted)


@st.composite
def pairs(draw, level=NESTED):
    """The same formula in our language and in rtamt's."""
    if level == 0:
        body = draw(states)
        word = draw(st.sampled_from(["", "G", "F"]))
        return (f"{word} ({body[0]})", f"{ ({'G': 'always', 'F': 'eventually'}.get(word, '')) }({body[1]})")
    ours, theirs = draw(pairs(level - 1))
    other = draw(states)
    a, b = draw(windows)
    return draw(
        st.sampled_from(
            [
                (f"G[{a},{b}] ({ours})", f"always[{a}:{b}]({theirs})"),
                (f"F[{a},{b}] ({ours})", f"eventually[{a}:{b}]({theirs})"),
                (f"({other[0]}) U[{a},{b}] ({ours})", f"(({other[1]}) until[{a}:{b}] ({theirs}))"),
                (f"({other[0]}) | !({ours})", f"(({other[1]}) or not({theirs}))"),
                (f"({other[0]}) => ({ours})", f"(({other[1]}) implies ({theirs}))"),
            ]
        )
    )


numbers = st.lists(st.sampled_from([-2.0, -1.0, 1.0, 3.0]), min_size=5, max_size=5)


@settings(max_examples=60)
@given(pairs(), numbers, numbers)
def test_rtamt_agrees(pair, x, y):
    import rtamt

    ours, theirs = pair
    spec = rtamt.StlDiscreteTimeSpecification()
    spec.declare_var("x", "float")
    spec.declare_var("y", "float")
    spec.spec = theirs
    spec.parse()
    padding = LARGEST * NESTED + 1
    trace = {"x": x + x[-1:] * padding, "y": y + y[-1:] * padding}
    robustness = spec.evaluate({"time": list(range(len(trace["x"]))), **trace})[0][1]
    assert robustness != 0
    assert check_path(ours, {"x": np.array(x), "y": np.array(y)}).satisfied == (robustness > 0)
