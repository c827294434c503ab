"""Exact values of policies on finite domains, and the optimum of the constrained problem."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from psyco._src.core.errors import RunError
from psyco._src.envs.base import Domain, FiniteDomain, written_for
from psyco._src.envs.model_file import ModelFile
from psyco._src.envs.program_file import ProgramFile
from psyco._src.exact.model_consistency import FALSE_ALARM_RATE, SAMPLED_RESETS
from psyco._src.exact.unfold import Unfolding, policy_actions, unfold
from psyco._src.logic.ast import (
    Bool,
    Constraint,
    Expectation,
    Formula,
    Instant,
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

TOLERANCE = 1e-9  # of the optimum, and of meeting a bound
TOTAL_DIGITS = 9  # decimals to which totals are rounded in a distribution
MAX_TOTALS = 2_000_000  # pairs of node and total after a step
FRONT_TOLERANCE = 1e-4  # distance of a vertex from the line without it, relative to the extent of the front

EXACT = Guarantee(
    "exact",
    "All states, random draws and episodes that the domain lists (initial_distribution, draw_probabilities, "
    "transition) were enumerated: up to rounding errors this is no estimate. That the domain also does what it lists "
    f"was tested before, on initial states ({SAMPLED_RESETS:,}) and single steps of episodes under random actions, "
    "sampled by reset and step. The test rejects a consistent domain with probability at most "
    f"{FALSE_ALARM_RATE:g}; a small or rare difference may remain.",
    0.0,
    0.0,
)


EPISODE_LENGTH = Quantity(Bool(True), Total())


class Value(NamedTuple):
    """Exact values of a policy, or of the best mixture of policies."""

    expected_return: float
    probabilities: tuple[float, ...]  # of the constraints' formulas
    expected: tuple[float, ...] = ()  # values of the quantities in the other constraints, means or CVaR

    def by_constraint(self, requirement: Requirement) -> list[float]:
        """Return probabilities and expected values in the order of the constraints."""
        numbers = {Constraint: iter(self.probabilities), Expectation: iter(self.expected)}
        return [next(numbers[type(stated)]) for stated in requirement.constraints]


@dataclass(frozen=True)
class ExactAnswer:
    """The exact values of a policy, and the optimum over all controllers."""

    verdict: Verdict
    value: Value
    optimum: Value | None  # None if no controller satisfies the requirement, or if it bounds a CVaR
    nodes: int  # of the unfolded Markov chain
    answers: tuple[float, ...] = ()  # one per question of the requirement
    guarantee: Guarantee = EXACT

    @property
    def gap(self) -> float | None:
        """Difference between the expected return and the optimum; None if there is no optimum."""
        return None if self.optimum is None else abs(self.optimum.expected_return - self.value.expected_return)


def exact(policy: PolicyLike, domain: Domain, requirement: Requirement) -> ExactAnswer:
    """Return the exact probabilities, expected values and return of a policy on a finite domain, and the optimum.

    The optimum is over all controllers, including those that see the counters, have memory and randomise.

    Args:
        policy: any policy that `verify` accepts.
        domain: a finite one, such as Obstacle Run.
        requirement: constraints and questions.
    """
    if isinstance(domain, ModelFile | ProgramFile):
        from psyco._src.exact.model_values import model_exact  # it makes an `ExactAnswer`

        return model_exact(policy, domain, requirement)
    layout = _value_layout(requirement)
    chain = unfold(domain, layout.formulas, policy_actions(policy, domain), quantities=layout.quantities)
    process = unfold(domain, layout.formulas, quantities=layout.quantities)
    values = _backward_induction(chain)

    def value(stated: Constraint | Expectation | Question) -> float:
        subject = _subject(stated)
        if isinstance(subject, Quantity) and subject.cvar is not None:
            return _tail_mean(chain, layout, subject, largest=getattr(stated, "lower", -np.inf) == -np.inf)
        if isinstance(stated, Question) and stated.best is not None:
            return layout.value(subject, _best_values(process, stated, layout))
        return layout.value(subject, values)

    found = [value(stated) for stated in requirement.constraints]
    holds = all(map(satisfies, requirement.constraints, found))
    only_asked = requirement.questions and not requirement.constraints
    return ExactAnswer(
        Verdict.ANSWERED if only_asked else Verdict.SATISFIED if holds else Verdict.VIOLATED,
        _value(requirement, float(values[0]), found),
        None if requirement.bounds_cvar else _solve_optimum(process, requirement, layout),
        chain.nodes,
        tuple(value(question) for question in requirement.questions),
    )


def evaluate(chain: Unfolding) -> Value:
    """Return the values of a Markov chain by backward induction; for a rate, the expected total."""
    if chain.actions != 1:
        raise RunError("only the Markov chain of a policy has a value; a decision process has an optimum")
    expected_return, *rest = map(float, _backward_induction(chain))
    quantities = len(chain.initial_gains)
    expected, probabilities = rest[:quantities], rest[quantities : quantities + chain.formulas]
    return Value(expected_return, tuple(probabilities), tuple(expected))


def constrained_optimum(domain: Domain, requirement: Requirement | str) -> Value | None:
    """Return the best expected return under the constraints over all controllers; None if they are infeasible.

    The linear program over occupation measures is solved by Dantzig-Wolfe decomposition: its vertices are
    deterministic policies, found by backward induction for the prices (dual values) of the constraints, and HiGHS
    mixes those found so far. It ends when no policy is worth more than its price.
    """
    requirement = written_for(parse(requirement) if isinstance(requirement, str) else requirement, domain)
    if requirement.bounds_cvar:
        raise RunError("the optimum under a bound on CVaR is not computed; bound a probability or an expected value")
    layout = _value_layout(requirement)
    process = unfold(domain, layout.formulas, quantities=layout.quantities)
    return _solve_optimum(process, requirement, layout)


def best_probability(domain: Domain, formula: Formula) -> float:
    """Return the largest probability of a formula over all controllers of a finite domain."""
    layout = _ValueLayout((), (formula,))
    process = unfold(domain, layout.formulas)
    return layout.value(formula, _backward_induction(process, layout.unit(formula)))


def game_value(domain: FiniteDomain, formula: Formula, share: float) -> float:
    """Return the value of a stochastic game: the smallest probability of a formula that a controller can ensure.

    In every step the controller chooses an action first. Then, with probability `share`, an adversary that knows the
    action chooses the random draw to make the formula more probable; else it is drawn as ever. Both know state, time
    and all counters. The game is solved by value iteration over time.
    """
    process, value = unfold(domain, (formula,)), np.zeros(0)
    for layer in reversed(process.layers):
        at_end = layer.satisfied[:, 0].astype(np.float64)
        if len(value):
            ahead = value[layer.successor]  # [M, actions, C]
            by_action = (1.0 - share) * (ahead @ process.draw_probabilities) + share * ahead.max(axis=-1)
            at_end = np.where(layer.final, at_end, by_action.min(axis=1))
        value = at_end
    return float(process.start @ value)


def exact_pareto_front(domain: Domain, formula: Formula) -> list[tuple[float, float]]:
    """Return the vertices (probability, return) of the Pareto front between a formula's probability and the return.

    The front is a falling line through deterministic policies; points between two vertices are mixtures. The first
    vertex has the best return, the last the largest probability. Vertices closer to the line without them than
    `FRONT_TOLERANCE` are left out.

    Args:
        domain: a finite one.
        formula: whose probability is traded for return.
    """
    layout = _ValueLayout((), (formula,))
    process = unfold(domain, layout.formulas)
    pick = np.stack([layout.unit(formula), np.eye(1, 2)[0]])  # probability, return

    def best(weights: Vector) -> Vector:
        return np.asarray(pick @ _backward_induction(process, weights @ pick))

    first, last = best(np.array([TOLERANCE, 1.0])), best(np.array([1.0, TOLERANCE]))
    extent = np.abs(last - first)
    if extent.min() <= TOLERANCE:
        return [(float(last[0]), float(last[1]))]

    def between(left: Vector, right: Vector) -> list[Vector]:
        normal = np.array([left[1] - right[1], right[0] - left[0]])
        vertex = best(normal)
        above = normal @ (vertex - left) / (normal @ extent)
        return [*between(left, vertex), vertex, *between(vertex, right)] if above > FRONT_TOLERANCE else []

    return [(float(p), float(r)) for p, r in (first, *between(first, last), last)]


# ---- value vectors: return, Q expected totals, probabilities --------------------------------------------------------

Vector: TypeAlias = NDArray[np.float64]  # [V]


class _ValueLayout(NamedTuple):
    """Entries of a value vector after the return: the quantities and formulas of a requirement, each once."""

    quantities: tuple[Quantity, ...]
    formulas: tuple[Formula, ...]

    def unit(self, subject: Formula | Quantity) -> Vector:
        """Return the unit vector of a formula's probability, or of a quantity's expected total."""
        every: tuple[Formula | Quantity, ...] = (*self.quantities, *self.formulas)
        reaching = sum(isinstance(each.over, Reaching) for each in self.quantities)
        return np.eye(1 + len(every) + reaching)[1 + every.index(subject)]

    def value(self, subject: Formula | Quantity, values: Vector) -> float:
        """Return the probability of a formula, or the expected value of a quantity."""
        value = float(self.unit(subject) @ values)
        if isinstance(subject, Quantity) and isinstance(subject.over, LongRun):
            return value / float(self.unit(EPISODE_LENGTH) @ values)  # the renewal-reward theorem
        return value


def _value_layout(requirement: Requirement) -> _ValueLayout:
    every = dict.fromkeys(subjects(requirement))
    quantities = [each for each in every if isinstance(each, Quantity)]
    if any(isinstance(each.over, LongRun) for each in quantities) and EPISODE_LENGTH not in quantities:
        quantities.append(EPISODE_LENGTH)
    return _ValueLayout(tuple(quantities), tuple(each for each in every if not isinstance(each, Quantity)))


def _subject(stated: Constraint | Expectation | Question) -> Any:
    return stated.formula if isinstance(stated, Constraint) else stated.subject


def _value(requirement: Requirement, expected_return: float, found: Sequence[float]) -> Value:
    """Return the values from those of the constraints."""

    def numbers(kind: type) -> tuple[float, ...]:
        pairs = zip(requirement.constraints, found, strict=True)
        return tuple(number for stated, number in pairs if isinstance(stated, kind))

    return Value(expected_return, numbers(Constraint), numbers(Expectation))


def _backward_induction(graph: Unfolding, prices: Vector | None = None) -> Vector:
    """Return the value vector by backward induction; of several actions, the best one at these prices."""
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
            action_values = np.einsum("c,macv->mav", graph.draw_probabilities, ahead)
            best = np.argmax(action_values @ prices, axis=1)
            values = np.where(layer.final[:, None], at_end, action_values[np.arange(len(best)), best])
        else:
            values = at_end
    total: Vector = graph.start @ values
    total[1 : 1 + quantities] += graph.initial_gains
    return total


def _tail_mean(chain: Unfolding, layout: _ValueLayout, quantity: Quantity, *, largest: bool) -> float:
    """Return the CVaR of a quantity on the Markov chain of a policy."""
    total, chance = _distribution(chain, layout.quantities.index(quantity), quantity)
    order = np.argsort(-total if largest else total)
    total, worst = total[order], 1.0 - (quantity.cvar or 0.0)
    taken = np.diff(np.minimum(np.cumsum(chance[order]), worst), prepend=0.0)
    return float(total @ taken / taken.sum())


def _distribution(chain: Unfolding, column: int, quantity: Quantity) -> tuple[Vector, Vector]:
    """Return the possible totals of an episode and their probabilities, by forward induction over nodes and totals."""
    if quantity.over == Instant(0):
        raise RunError(f"the distribution of {quantity.text('=?')} is not computed: it is about the first state alone")
    node = np.arange(len(chain.start))
    total, chance = np.zeros(len(node)), chain.start
    ended: list[tuple[Vector, Vector]] = []
    for layer in chain.layers:
        final = layer.final[node]
        ended.append((total[final], chance[final]))
        node, total, chance = node[~final], total[~final], chance[~final]
        ahead = (total[:, None] + layer.gain[node, 0, :, column]).round(TOTAL_DIGITS)
        pairs = np.stack([layer.successor[node, 0].ravel(), ahead.ravel()], axis=1)
        pairs, inverse = np.unique(pairs, axis=0, return_inverse=True)
        if len(pairs) > MAX_TOTALS:
            raise RunError(
                f"{quantity.text('=?')} has too many totals: more than {MAX_TOTALS:,} with their states; psyco.verify "
                "estimates it"
            )
        node, total, arrived = pairs[:, 0].astype(np.int64), pairs[:, 1], chance[:, None] * chain.draw_probabilities
        chance = np.zeros(len(pairs))
        np.add.at(chance, inverse.ravel(), arrived.ravel())
    totals, chances = (np.concatenate(parts) for parts in zip(*ended, strict=True))
    return totals, chances


def _best_values(process: Unfolding, question: Question, layout: _ValueLayout) -> Vector:
    """Return the value vector of the controller that answers a question about min or max."""
    sign, unit = 1.0 if question.best == "max" else -1.0, layout.unit(question.subject)
    values = _backward_induction(process, sign * unit)
    if not (isinstance(question.subject, Quantity) and isinstance(question.subject.over, LongRun)):
        return values
    # Dinkelbach: the best controller against a rate has a better rate, until that rate is the optimum.
    while True:
        rate = layout.value(question.subject, values)
        better = _backward_induction(process, sign * (unit - rate * layout.unit(EPISODE_LENGTH)))
        if sign * (layout.value(question.subject, better) - rate) <= TOLERANCE / 1000:
            return values
        values = better


# ---- the linear program -----------------------------------------------------------------------------------------


class _LinearConstraint(NamedTuple):
    """One bound of a constraint: row @ values <= bound."""

    row: Vector
    bound: float


def _linear_constraints(requirement: Requirement, layout: _ValueLayout) -> Iterator[_LinearConstraint]:
    for stated in requirement.constraints:
        unit, lowest, highest = layout.unit(_subject(stated)), -np.inf, np.inf
        if isinstance(stated, Constraint):
            lowest, highest = 0.0, 1.0
        for sign, bound, is_bounded in (
            (-1.0, stated.lower, stated.lower > lowest),
            (1.0, stated.upper, stated.upper < highest),
        ):
            if is_bounded and isinstance(stated, Expectation) and isinstance(stated.subject.over, LongRun):
                yield _LinearConstraint(sign * (unit - bound * layout.unit(EPISODE_LENGTH)), 0.0)
            elif is_bounded:
                yield _LinearConstraint(sign * unit, sign * bound)


def _solve_optimum(process: Unfolding, requirement: Requirement, layout: _ValueLayout) -> Value | None:
    constraints = list(_linear_constraints(requirement, layout))
    goal = np.zeros(process.layers[0].satisfied.shape[1] + 1 + len(layout.quantities))
    goal[0] = 1.0 if requirement.goal.maximize else -1.0
    policies = [
        _backward_induction(process, goal),
        *(_backward_induction(process, -constraint.row) for constraint in constraints),
    ]
    for feasibility in (True, False):  # phase 1 finds a feasible mixture, phase 2 the best one
        while True:
            mixture = _best_mixture(np.array(policies), constraints, goal, feasibility=feasibility)
            if mixture.violation > TOLERANCE and not feasibility:
                return None
            if feasibility and mixture.violation <= TOLERANCE:
                break
            further = _backward_induction(process, mixture.prices)
            if mixture.prices @ further <= mixture.worth + TOLERANCE:
                break
            policies.append(further)
        if mixture.violation > TOLERANCE:
            return None
    values = mixture.weights @ np.array(policies)
    found = [layout.value(_subject(stated), values) for stated in requirement.constraints]
    return _value(requirement, float(values[0]), found)


class _Mixture(NamedTuple):
    weights: NDArray[np.float64]  # of the policies
    prices: Vector  # of the entries of a value vector, from the dual values
    worth: float  # of the mixture at these prices
    violation: float  # of the constraints, in total


def _best_mixture(
    values: NDArray[np.float64], constraints: list[_LinearConstraint], goal: Vector, *, feasibility: bool
) -> _Mixture:
    """Return the mixture of policies `[policies, V]` with least violation, or the best return without violation."""
    from scipy.optimize import linprog  # slow to import

    policies = len(values)
    rows = (
        np.array([constraint.row for constraint in constraints]).reshape(len(constraints), values.shape[1]) @ values.T
    )
    cost = np.concatenate(
        [np.zeros(policies) if feasibility else -(values @ goal), np.ones(len(constraints)) * feasibility]
    )
    solved = linprog(
        cost,
        A_ub=np.concatenate([rows, -np.eye(len(constraints))], axis=1) if constraints else None,
        b_ub=[constraint.bound for constraint in constraints] if constraints else None,
        A_eq=[[1.0] * policies + [0.0] * len(constraints)],
        b_eq=[1.0],
        bounds=[(0.0, None)] * policies + [(0.0, None if feasibility else 0.0)] * len(constraints),
        method="highs",
        options={"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10},
    )
    if not solved.success:
        raise RunError(f"the linear program of the optimum was not solved: {solved.message}")
    prices = np.zeros_like(goal) if feasibility else goal.copy()
    for constraint, dual in zip(constraints, solved.ineqlin.marginals if constraints else [], strict=True):
        prices += dual * constraint.row
    return _Mixture(
        solved.x[:policies],
        prices,
        float(-solved.eqlin.marginals[0]),
        float(solved.x[policies:].sum()),
    )


def satisfies(constraint: Constraint | Expectation, number: float) -> bool:
    """Return whether a number meets the bounds of a constraint."""
    lower, upper = constraint.lower, constraint.upper
    above = number > lower if constraint.comparison == ">" else number >= lower - TOLERANCE
    below = number < upper if constraint.comparison == "<" else number <= upper + TOLERANCE
    return above and below
