"""One formula, one meaning: compiled, on the host, at run time, in C and exactly, as fractions say."""

import random
from dataclasses import dataclass
from fractions import Fraction
from math import prod
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import psyco
from psyco import Outlook
from psyco._src.envs.actions import Discrete
from psyco._src.logic import ast as f
from psyco._src.logic.batch_monitor import compile_monitor
from psyco._src.logic.c_monitor import c_monitor
from psyco._src.logic.exact_constants import exact_comparison
from psyco._src.logic.parser import parse_formula
from psyco._src.policies.c_export import c_files
from psyco._src.policies.network import Network
from psyco._src.policies.serialization import Policy
from tests.logic.by_definition import COMPARE
from tests.policies.test_c_export import build, run

# ---- whole-number signals along 64 paths of two states each --------------------------------------------------------

RNG = np.random.default_rng(0)
PLACES = 64
TABLE = {"x": RNG.integers(-9, 10, PLACES), "y": RNG.integers(1, 8, PLACES), "z": RNG.integers(0, 13, PLACES)}
NEXT = RNG.permutation(PLACES)  # where each place leads
PATHS = {name: np.stack([values, values[NEXT]], axis=1) for name, values in TABLE.items()}  # [64, 2] each
DECIMALS = ["0.1", "0.2", "0.3", "0.7", "1.1", "2.5", "0.05", "0.003", "3", "7", "49"]


def value(term: f.Term, path: dict[str, list[int]], i: int) -> Fraction:
    """The value of a term in a state, in exact fractions; constants are the decimals of the text."""
    match term:
        case f.Number(number):
            return Fraction(str(number))
        case f.Signal(name):
            return Fraction(path[name][i])
        case f.Minus(body):
            return -value(body, path, i)
        case f.Arith(operator, left, right):
            one, other = value(left, path, i), value(right, path, i)
            results = {"+": lambda: one + other, "-": lambda: one - other, "*": lambda: one * other}
            return results.get(operator, lambda: one / other)()
        case f.Call(function, arguments):
            numbers = [value(argument, path, i) for argument in arguments]
            return abs(numbers[0]) if function == "abs" else {"min": min, "max": max}[function](numbers)
        case f.Aggregate("count", body):
            return Fraction(sum(holds(body, path, k) for k in range(i + 1)))
        case f.Aggregate(function, body):
            numbers = [value(body, path, k) for k in range(i + 1)]
            total = sum(numbers, Fraction(0))
            return {"sum": total, "mean": total / (i + 1), "least": min(numbers), "most": max(numbers)}[function]
    raise TypeError(term)


def holds(compare: f.Formula, path: dict[str, list[int]], i: int) -> bool:
    assert isinstance(compare, f.Compare)
    return bool(COMPARE[compare.operator](value(compare.left, path, i), value(compare.right, path, i)))


def path_of(number: int) -> dict[str, list[int]]:
    return {name: values[number].tolist() for name, values in PATHS.items()}


def whole_term(rng: random.Random, depth: int, running: bool = True) -> str:
    """A random term over whole numbers and decimals, without a division by a signal."""
    if depth == 0:
        return rng.choice(["x", "y", "z"])
    inner = [whole_term(rng, depth - 1, running) for _ in range(2)]
    number = rng.choice(DECIMALS)
    kinds = [
        f"{number} * ({inner[0]})",
        f"({inner[0]}) / {number}",
        f"({inner[0]}) + {number} * ({inner[1]})",
        f"({inner[0]}) - {number}",
        f"{number} - ({inner[0]})",
        f"-({inner[0]})",
        f"abs({inner[0]})",
        f"min({inner[0]}, {inner[1]}, {number})",
        f"max({inner[0]}, {inner[1]})",
        "x * z",
    ]
    if running:
        body = whole_term(rng, depth - 1, running=False)
        kinds += [f"{rng.choice(['sum', 'least', 'most'])}({body})", f"count({body} <= {number})"]
    return rng.choice(kinds)


def random_comparison(rng: random.Random) -> str:
    """A comparison that often is a tie: the number on the right is the value of the left side in some state."""
    whole = whole_term(rng, rng.choice([1, 1, 2, 2, 3]))
    ratio = rng.choice(["({}) / y", "mean({})", "{} * mean({})", "{} - mean({})", "({}) / (0.1 * y)"])
    plain = whole_term(rng, 1, running=False)
    term = rng.choice([whole, ratio.format(*[plain] if ratio.count("{}") == 1 else [rng.choice(DECIMALS), plain])])
    if term == whole and rng.random() < 0.3:
        other = whole_term(rng, 1)
    else:
        number = value(parse_formula(f"{term} < 1").left, path_of(rng.randrange(PLACES)), rng.randrange(2))
        digits = next((d for d in range(7) if (number * 10**d).denominator == 1), None)
        other = rng.choice(DECIMALS) if digits is None else f"{float(number):.{digits}f}"
    return f"{term} {rng.choice(list(COMPARE))} {other}"


def is_small(text: str) -> bool:
    """Whether float32 has all whole numbers that occur: the denominators make them large."""
    numbers = [n.value for n in f.walk(parse_formula(text)) if isinstance(n, f.Number)]
    return prod(max(1, round(1000 * n)) for n in numbers if n != int(n)) < 10**6


def some_comparisons(count: int) -> list[str]:
    rng, texts = random.Random(1), {}
    while len(texts) < count:
        text = random_comparison(rng)
        if is_small(text):
            texts[text] = None
    return list(texts)


TEXTS = ["0.1 * z <= 0.3", "sum(0.1 * z) < 0.7", "0.7 = z / 10", *some_comparisons(120)]
FORMULAS = [parse_formula(f"G ({t})" if i % 2 else f'F ("end" & {t})') for i, t in enumerate(TEXTS)]
REQUIREMENT = f.Requirement(constraints=tuple(f.Constraint(formula, ">=", 0.5, 1.0) for formula in FORMULAS))


def by_fractions() -> np.ndarray:
    """Whether each path satisfies each formula, bool [64, K]."""
    satisfied = np.zeros((PLACES, len(TEXTS)), bool)
    for k, compare in enumerate(map(parse_formula, TEXTS)):
        for number in range(PLACES):
            states = [holds(compare, path_of(number), i) for i in range(2)]
            satisfied[number, k] = all(states) if k % 2 else states[-1]
    return satisfied


TRUTH = by_fractions()


def disagreements(found: Any) -> list[str]:
    return [
        str(formula) for formula, column in zip(FORMULAS, (np.asarray(found) != TRUTH).T, strict=True) if column.any()
    ]


def test_the_comparisons_are_ties_often_and_plain_arithmetic_gets_some_wrong():
    """So the tests below can fail."""
    plain = [compile_monitor([formula]) for formula in FORMULAS]
    assert 0.2 < TRUTH.mean() < 0.8
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("psyco._src.logic.array_eval.exact_comparison", lambda compare: compare)
        found = np.stack([monitor({**PATHS, "step": np.arange(2) + 0 * PATHS["x"]})[0][:, 0] for monitor in plain], -1)
    assert len(disagreements(found)) >= 5


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.float32, np.float64])
def test_the_host_decides_as_fractions_do(dtype):
    signals = {name: values.astype(dtype) for name, values in PATHS.items()}
    assert disagreements(compile_monitor(FORMULAS)(signals)[0]) == []


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [np.int32, np.float32])
def test_compiled_code_decides_as_fractions_do(dtype):
    signals = {name: jnp.asarray(values.astype(dtype)) for name, values in PATHS.items()}
    assert disagreements(jax.jit(compile_monitor(FORMULAS))(signals)[0]) == []


@pytest.mark.slow
def test_a_ratio_of_whole_numbers_is_rounded_once_in_compiled_code():
    """XLA may multiply by the reciprocal of a constant, and `step` is one: 5 * (1 / 7) is not 5 / 7."""
    numbers, steps = (1, 5, 6, 9, 17, 40), (3, 7, 11, 13, 49)
    cases = [(n, k) for n in numbers for k in steps]
    means = [parse_formula(f"F (step = {k - 1} & {k} * mean(x) = {n})") for n, k in cases]
    ratios = [parse_formula(f"F (step = {k} & {k} * (most(x) / step) = {n})") for n, k in cases]
    monitor = compile_monitor([*means, *ratios])
    evaluate = jax.jit(lambda x: monitor({"x": x, "step": jnp.arange(x.shape[-1])})[0])
    for number in numbers:
        found = np.asarray(evaluate(jnp.zeros(50, jnp.int32).at[0].set(number)))
        assert found.tolist() == [n == number for n, _ in cases] * 2


@pytest.mark.parametrize("convert", [int, float, np.float32])
def test_the_runtime_monitor_decides_as_fractions_do(convert):
    monitor, found = psyco.Monitor(REQUIREMENT), np.zeros_like(TRUTH)
    for number in range(PLACES):
        path, _ = path_of(number), monitor.start()
        for i in range(2):
            status = monitor.update({name: convert(values[i]) for name, values in path.items()}, end=i == 1)
        found[number] = [each.outlook is Outlook.SATISFIED for each in status.constraints]
    assert disagreements(found) == []


@pytest.mark.slow
def test_c_decides_as_fractions_do(compiler: str, tmp_path: Path):
    network = Network(1, 1, 1)
    policy = Policy(np.zeros(network.size, np.float32), network, psyco.Discrete(1), "nowhere", {})
    names = [str(signal) for signal, _ in c_monitor(REQUIREMENT).signals]
    rows = [[i, 0.0, *(PATHS[name][number, i] for name in names)] for number in range(PLACES) for i in range(2)]
    printed = run(build(compiler, tmp_path, c_files(policy, REQUIREMENT)), np.array(rows, np.float32))
    assert disagreements(printed[1::2, 1::2] == 1) == []


class Place(NamedTuple):
    at: Any


@dataclass(frozen=True)
class Table:
    """An episode is one of the 64 paths, each equally likely."""

    horizon: int = 1
    name: ClassVar[str] = "table"
    counters: ClassVar[tuple[str, ...]] = ()
    observation_size: ClassVar[int] = 1
    actions: ClassVar[Discrete] = Discrete(2)

    def initial_distribution(self):
        return np.full(PLACES, 1 / PLACES), Place(jnp.arange(PLACES))

    def draw_probabilities(self):
        return np.ones(1)

    def transition(self, state, action, drawn):
        return Place(jnp.asarray(NEXT)[state.at]), jnp.float32(0), jnp.bool_(False)

    def reset(self, key):
        return Place(jax.random.randint(key, (), 0, PLACES))

    def step(self, key, state, action):
        return self.transition(state, action, 0)

    def observe(self, state):
        return jnp.zeros(1)

    def signals(self, state):
        return {name: jnp.asarray(values)[state.at] for name, values in TABLE.items()}


@pytest.mark.slow
def test_exact_answers_and_the_chain_for_storm_are_as_fractions_say():
    from psyco._src.exact.plain_chain import plain_chain

    found = psyco.exact(lambda observation: 0, Table(), REQUIREMENT).value.probabilities
    assert found == pytest.approx(tuple(TRUTH.mean(axis=0)), abs=1e-12)
    graph = plain_chain(lambda observation: 0, Table(), FORMULAS, [])
    at_end = graph.layers[-1].letters[graph.layers[0].successor[:, 0, 0]]  # [classes, atoms]
    for k in range(0, len(FORMULAS), 2):
        atom = graph.atoms.index(FORMULAS[k].operands[0])
        assert graph.start @ at_end[:, atom] == pytest.approx(TRUTH[:, k].mean(), abs=1e-12), TEXTS[k]


@pytest.mark.parametrize(
    ("text", "exact"),
    [
        ("0.1 * x <= 0.3", "x <= 3"),
        ("0.3 >= 0.1 * x", "3 >= x"),
        ("x / 3 < 0.1", "x < 0.3"),
        ("-0.5 * x + 1 > 0", "-x > -2"),
        ("1 - mean(0.1 * x) >= 0.5", "-mean(x) >= -5"),
        ("0.1 * x + 0.25 * y <= z", "2 * x + 5 * y <= 20 * z"),
        ("abs(0.1 * x) * y = 0.7", "abs(x) * y = 7"),
        ("max(0.1 * x, 0.25) < y", "max(2 * x, 5) < 20 * y"),
        ("sum(x / 2) > 3", "sum(x) > 6"),
        ("0.1 * 3 <= 0.3", "0 <= 0"),
        ("0.1 * (x / y) > 1", "x / y > 10"),
        ("0.1 * count(0.1 * x <= 0.3) <= 0.3", "count(0.1 * x <= 0.3) <= 3"),
    ],
)
def test_constants_are_computed_with_exactly(text, exact):
    assert str(exact_comparison(parse_formula(text))) == exact


@pytest.mark.parametrize(
    "text",
    [
        "distance >= 0.1",
        "collisions <= 1",
        "-3 <= x",
        "x + y <= 2 * z",
        "abs(agent[0] - obstacle[0]) + 2 * collisions <= 4",
        "x / y >= 0.1",
        "x / 0 >= 1",  # undefined for x = 0
        "0 * (x / y) <= 1",
        "x <= 1 / 0",
        "0.123456789 * x + 0.3 * y <= z",  # too large for float32
    ],
)
def test_a_comparison_without_anything_to_compute_stays_what_it_is(text):
    compare = parse_formula(text)
    assert exact_comparison(compare) is compare


def test_the_severity_of_a_violation_is_measured_in_the_written_units():
    monitor = compile_monitor([parse_formula("G (0.1 * x <= 0.3)")], severity=True)
    assert monitor({"x": np.array([3.0, 5.0])})[1].tolist() == pytest.approx([0.2])


def test_aggregates_are_shown_as_they_were_written():
    status = psyco.Monitor("P>=0.5 [ G (sum(0.5 * x) <= 2.5) ]").update({"x": 5})
    assert status.aggregates == {"sum(0.5 * x)": 2.5}
