"""Exact answers on finite domains: probabilities, expected values, rates, the optimum of the constrained problem."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from psyco._src.core.errors import RunError
from psyco._src.envs.base import Domain
from psyco._src.exact.model_consistency import FALSE_ALARM, STARTS
from psyco._src.exact.unfold import Unfolding, actions_of, unfold
from psyco._src.logic.ast import (
    Bool,
    Constraint,
    Expectation,
    Formula,
    LongRun,
    Quantity,
    Question,
    Reaching,
    Requirement,
    Total,
)
from psyco._src.logic.parser import parse
from psyco._src.logic.validate import subjects
from psyco._src.policies.external import PolicyLike
from psyco._src.verification.base import Guarantee, Verdict

TOLERANCE = 1e-9  # of the optimum, and of what counts as meeting a bound exactly
CLOSE = 1e-4  # of the extent of a front, between a corner and the line without it

EXACT = Guarantee(
    "exact",
    "All states, random draws and episodes that the domain lists (starts, chances, move) were enumerated: up to "
    "rounding errors this is no estimate. That the domain also does what it lists was tested before, on initial states "
    f"({STARTS:,}) and single steps of episodes under random actions, sampled by reset and step. The test finds fault "
    f"with a domain that does so with a chance of at most {FALSE_ALARM:g}; a small or rare difference may remain.",
    0.0,
    0.0,
)


STEPS = Quantity(Bool(True), Total())  # the length of an episode


class Value(NamedTuple):
    """What a policy, or the best mixture of policies, is worth."""

    expected_return: float
    probabilities: tuple[float, ...]  # of the constraints' formulas
    expected: tuple[float, ...] = ()  # values of the quantities that other constraints bound

    def by_constraint(self, requirement: Requirement) -> list[float]:
        """Probabilities and expected values in the order of the constraints."""
        numbers = {Constraint: iter(self.probabilities), Expectation: iter(self.expected)}
        return [next(numbers[type(each)]) for each in requirement.constraints]


@dataclass(frozen=True)
class ExactAnswer:
    """The exact value of a policy beside the best that any controller can do."""

    verdict: Verdict
    value: Value
    optimum: Value | None  # None if no controller can meet the requirement
    nodes: int  # of the Markov chain, unfolded over time
    answers: tuple[float, ...] = ()  # to the questions of the requirement
    guarantee: Guarantee = EXACT

    @property
    def gap(self) -> float | None:
        """How far the expected return is from the optimum."""
        return (
            None if self.optimum is None else abs(self.optimum.expected_return - self.value.expected_return)
        )


def exact(policy: PolicyLike, domain: Domain, requirement: Requirement) -> ExactAnswer:
    """The exact probabilities, expected values and return of a policy on a finite domain, and the optimum.

    The optimum is over all controllers, also ones that see the counters, remember and randomise: nobody can do better.

    Args:
        policy: whatever `verify` takes.
        domain: one that can be enumerated, such as Obstacle Run.
        requirement: what must hold, as text or parsed.
    """
    columns = _columns(requirement)
    chain = unfold(domain, columns.formulas, actions_of(policy, domain), quantities=columns.quantities)
    process = unfold(domain, columns.formulas, quantities=columns.quantities)
    found = _backwards(chain)
    holds = all(_meets(each, columns.number(_subject(each), found)) for each in requirement.constraints)
    only_asked = requirement.questions and not requirement.constraints
    return ExactAnswer(
        Verdict.ANSWERED if only_asked else Verdict.SATISFIED if holds else Verdict.VIOLATED,
        _value(requirement, columns, found),
        _optimum(process, requirement, columns),
        chain.nodes,
        tuple(
            columns.number(each.subject, found if each.best is None else _best(process, each, columns))
            for each in requirement.questions
        ),
    )


def evaluate(chain: Unfolding) -> Value:
    """Probabilities, expected values and return by backward induction; of a rate the expected total."""
    if chain.actions != 1:
        raise RunError("only a policy's Markov chain has a value; a decision process has an optimum")
    expected_return, *rest = map(float, _backwards(chain))
    quantities = len(chain.initial)
    expected, probabilities = rest[:quantities], rest[quantities : quantities + chain.formulas]
    return Value(expected_return, tuple(probabilities), tuple(expected))


def constrained_optimum(domain: Domain, requirement: Requirement | str) -> Value | None:
    """The best expected return under the constraints, over all controllers; None if they cannot be met.

    This is the linear program over occupation measures, solved by Dantzig-Wolfe decomposition: its vertices are
    deterministic policies, found one by one by backward induction for the prices (dual values) of the constraints;
    HiGHS mixes those found so far. It ends when no policy is worth more than its price.
    """
    requirement = parse(requirement) if isinstance(requirement, str) else requirement
    columns = _columns(requirement)
    process = unfold(domain, columns.formulas, quantities=columns.quantities)
    return _optimum(process, requirement, columns)


def front_of(domain: Domain, formula: Formula) -> list[tuple[float, float]]:
    """What the probability of a formula costs: the best expected return of any controller at every probability.

    That is a falling line with corners, which are deterministic policies; between two of them one is drawn by lot.
    Returns the corners as (probability, return): the first is what the best return has by itself, so that below it the
    return is the same; the last has the largest probability that there is. Corners are left out that lie closer to the
    line without them than a ten-thousandth of its extent.

    Args:
        domain: one that can be enumerated.
        formula: what must hold.
    """
    columns = _Columns((), (formula,))
    process = unfold(domain, columns.formulas)
    pick = np.stack([columns.unit(formula), np.eye(1, 2)[0]])  # probability, return

    def best(weights: Vector) -> Vector:
        return np.asarray(pick @ _backwards(process, weights @ pick))

    first, last = best(np.array([TOLERANCE, 1.0])), best(np.array([1.0, TOLERANCE]))
    extent = np.abs(last - first)
    if extent.min() <= TOLERANCE:
        return [(float(last[0]), float(last[1]))]

    def between(left: Vector, right: Vector) -> list[Vector]:
        normal = np.array([left[1] - right[1], right[0] - left[0]])
        corner = best(normal)
        above = normal @ (corner - left) / (normal @ extent)
        return [*between(left, corner), corner, *between(corner, right)] if above > CLOSE else []

    return [(float(p), float(r)) for p, r in (first, *between(first, last), last)]


# ---- what is computed: the return, Q expected totals, probabilities ---------------------------------------------

Vector: TypeAlias = NDArray[np.float64]  # [V] one number each


class _Columns(NamedTuple):
    """What a requirement speaks of, each once, in the order of a vector; the return stands before all of it."""

    quantities: tuple[Quantity, ...]
    formulas: tuple[Formula, ...]

    def unit(self, subject: Formula | Quantity) -> Vector:
        """Picks the probability of a formula, or the expected total of a quantity."""
        every: tuple[Formula | Quantity, ...] = (*self.quantities, *self.formulas)
        reaching = sum(isinstance(each.over, Reaching) for each in self.quantities)
        return np.eye(1 + len(every) + reaching)[1 + every.index(subject)]

    def number(self, subject: Formula | Quantity, found: Vector) -> float:
        """The probability of a formula, or the expected value of a quantity."""
        number = float(self.unit(subject) @ found)
        if isinstance(subject, Quantity) and isinstance(subject.over, LongRun):
            return number / float(self.unit(STEPS) @ found)  # the renewal-reward theorem
        return number


def _columns(requirement: Requirement) -> _Columns:
    every = dict.fromkeys(subjects(requirement))
    quantities = [each for each in every if isinstance(each, Quantity)]
    if any(isinstance(each.over, LongRun) for each in quantities) and STEPS not in quantities:
        quantities.append(STEPS)
    return _Columns(tuple(quantities), tuple(each for each in every if not isinstance(each, Quantity)))


def _subject(constraint: Constraint | Expectation) -> Formula | Quantity:
    return constraint.formula if isinstance(constraint, Constraint) else constraint.subject


def _value(requirement: Requirement, columns: _Columns, found: Vector) -> Value:
    def numbers(kind: type) -> tuple[float, ...]:
        stated = (each for each in requirement.constraints if isinstance(each, kind))
        return tuple(columns.number(_subject(each), found) for each in stated)

    return Value(float(found[0]), numbers(Constraint), numbers(Expectation))


def _backwards(graph: Unfolding, prices: Vector | None = None) -> Vector:
    """Backward induction; where there are choices, the best action at these prices of what is computed."""
    quantities = graph.layers[0].gain.shape[-1]
    size = 1 + quantities + graph.layers[0].satisfied.shape[1]
    prices = np.zeros(size) if prices is None else prices
    values = np.zeros((0, size))  # [M, V] of the layer below
    for layer in reversed(graph.layers):
        at_end = np.concatenate([np.zeros((len(layer.final), 1 + quantities)), layer.satisfied], axis=1)
        if len(values):
            ahead = values[layer.successor]  # [M, actions, C, V]
            ahead[..., 0] += layer.reward
            ahead[..., 1 : 1 + quantities] += layer.gain
            each = np.einsum("c,macv->mav", graph.chances, ahead)
            best = np.argmax(each @ prices, axis=1)
            values = np.where(layer.final[:, None], at_end, each[np.arange(len(best)), best])
        else:
            values = at_end
    found: Vector = graph.start @ values
    found[1 : 1 + quantities] += graph.initial
    return found


def _best(process: Unfolding, question: Question, columns: _Columns) -> Vector:
    """What the controller computes that answers a question about the best of all."""
    sign, unit = 1.0 if question.best == "max" else -1.0, columns.unit(question.subject)
    found = _backwards(process, sign * unit)
    if not (isinstance(question.subject, Quantity) and isinstance(question.subject.over, LongRun)):
        return found
    # Dinkelbach: who does best against a rate has a better one, until the rate is the best itself.
    while True:
        rate = columns.number(question.subject, found)
        better = _backwards(process, sign * (unit - rate * columns.unit(STEPS)))
        if sign * (columns.number(question.subject, better) - rate) <= TOLERANCE / 1000:
            return found
        found = better


# ---- the linear program -----------------------------------------------------------------------------------------


class _Side(NamedTuple):
    """One side of a constraint: row @ vector <= bound."""

    row: Vector
    bound: float


def _sides(requirement: Requirement, columns: _Columns) -> Iterator[_Side]:
    for each in requirement.constraints:
        unit, least, most = columns.unit(_subject(each)), -np.inf, np.inf
        if isinstance(each, Constraint):
            least, most = 0.0, 1.0
        for sign, bound, asks in (
            (-1.0, each.lower, each.lower > least),
            (1.0, each.upper, each.upper < most),
        ):
            if asks and isinstance(each, Expectation) and isinstance(each.subject.over, LongRun):
                yield _Side(sign * (unit - bound * columns.unit(STEPS)), 0.0)
            elif asks:
                yield _Side(sign * unit, sign * bound)


def _optimum(process: Unfolding, requirement: Requirement, columns: _Columns) -> Value | None:
    sides = list(_sides(requirement, columns))
    goal = np.zeros(process.layers[0].satisfied.shape[1] + 1 + len(columns.quantities))
    goal[0] = 1.0 if requirement.goal.maximize else -1.0
    found = [_backwards(process, goal), *(_backwards(process, -side.row) for side in sides)]
    for feasibility in (True, False):  # first find a mixture that meets all bounds, then the best of these
        while True:
            mixture = _mix(np.array(found), sides, goal, feasibility=feasibility)
            if mixture.violation > TOLERANCE and not feasibility:
                return None
            if feasibility and mixture.violation <= TOLERANCE:
                break
            further = _backwards(process, mixture.prices)
            if mixture.prices @ further <= mixture.worth + TOLERANCE:
                break
            found.append(further)
        if mixture.violation > TOLERANCE:
            return None
    return _value(requirement, columns, mixture.weights @ np.array(found))


class _Mixture(NamedTuple):
    weights: NDArray[np.float64]  # of the policies
    prices: Vector  # what a further policy would have to beat
    worth: float  # at these prices, of what is there
    violation: float  # of the constraints, in total


def _mix(found: NDArray[np.float64], sides: list[_Side], goal: Vector, *, feasibility: bool) -> _Mixture:
    """The best mixture of policies `[policies, V]`: least violation of the constraints, or best return without any."""
    from scipy.optimize import linprog  # takes long to import

    policies = len(found)
    rows = np.array([side.row for side in sides]).reshape(len(sides), found.shape[1]) @ found.T
    cost = np.concatenate(
        [np.zeros(policies) if feasibility else -(found @ goal), np.ones(len(sides)) * feasibility]
    )
    solved = linprog(
        cost,
        A_ub=np.concatenate([rows, -np.eye(len(sides))], axis=1) if sides else None,
        b_ub=[side.bound for side in sides] if sides else None,
        A_eq=[[1.0] * policies + [0.0] * len(sides)],
        b_eq=[1.0],
        bounds=[(0.0, None)] * policies + [(0.0, None if feasibility else 0.0)] * len(sides),
        method="highs",
        options={"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10},
    )
    if not solved.success:
        raise RunError(f"the linear program of the optimum was not solved: {solved.message}")
    prices = np.zeros_like(goal) if feasibility else goal.copy()
    for side, dual in zip(sides, solved.ineqlin.marginals if sides else [], strict=True):
        prices += dual * side.row
    return _Mixture(
        solved.x[:policies],
        prices,
        float(-solved.eqlin.marginals[0]),
        float(solved.x[policies:].sum()),
    )


def _meets(constraint: Constraint | Expectation, number: float) -> bool:
    lower, upper = constraint.lower, constraint.upper
    above = number > lower if constraint.comparison == ">" else number >= lower - TOLERANCE
    below = number < upper if constraint.comparison == "<" else number <= upper + TOLERANCE
    return above and below
