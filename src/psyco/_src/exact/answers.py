"""Exact answers on finite domains: probabilities, expected return, and the optimum of the constrained problem."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from psyco._src.domain.base import Domain
from psyco._src.errors import RunError
from psyco._src.exact.law import FALSE_ALARM, STARTS
from psyco._src.exact.unfold import Unfolding, actions_of, unfold
from psyco._src.policy.foreign import PolicyLike
from psyco._src.smc.base import Guarantee, Verdict
from psyco._src.spec.formula import Constraint, Requirement
from psyco._src.spec.parse import parse

TOLERANCE = 1e-9  # of the optimum, and of what counts as meeting a bound exactly

EXACT = Guarantee(
    "exact",
    "All states, random draws and episodes that the domain lists (starts, chances, move) were enumerated: up to "
    "rounding errors this is no estimate. That the domain also does what it lists was tested before, on initial states "
    f"({STARTS:,}) and single steps of episodes under random actions, sampled by reset and step. The test finds fault "
    f"with a domain that does so with a chance of at most {FALSE_ALARM:g}; a small or rare difference may remain.",
    0.0,
    0.0,
)


class Value(NamedTuple):
    """What a policy, or the best mixture of policies, is worth."""

    expected_return: float
    probabilities: tuple[float, ...]  # of the constraints' formulas


@dataclass(frozen=True)
class ExactAnswer:
    """The exact value of a policy beside the best that any controller can do."""

    verdict: Verdict
    value: Value
    optimum: Value | None  # None if no controller can meet the requirement
    nodes: int  # of the Markov chain, unfolded over time
    guarantee: Guarantee = EXACT

    @property
    def gap(self) -> float | None:
        """How far the expected return is from the optimum."""
        return (
            None if self.optimum is None else abs(self.optimum.expected_return - self.value.expected_return)
        )


def exact(policy: PolicyLike, domain: Domain, requirement: Requirement) -> ExactAnswer:
    """The exact probabilities and expected return of a policy on a finite domain, and the optimum.

    The optimum is over all controllers, also ones that see the counters, remember and randomise: nobody can do better.

    Args:
        policy: whatever `verify` takes.
        domain: one that can be enumerated, such as Obstacle Run.
        requirement: what must hold, as text or parsed.
    """
    chain = unfold(domain, [c.formula for c in requirement.constraints], actions_of(policy, domain))
    value = evaluate(chain)
    holds = all(map(_meets, requirement.constraints, value.probabilities))
    verdict = Verdict.SATISFIED if holds else Verdict.VIOLATED
    return ExactAnswer(verdict, value, constrained_optimum(domain, requirement), chain.nodes)


def evaluate(chain: Unfolding) -> Value:
    """Probabilities and expected return by backward induction."""
    if chain.actions != 1:
        raise RunError("only a policy's Markov chain has a value; a decision process has an optimum")
    return _backwards(chain, np.zeros(1 + chain.layers[0].satisfied.shape[1]))


def constrained_optimum(domain: Domain, requirement: Requirement | str) -> Value | None:
    """The best expected return under the constraints, over all controllers; None if they cannot be met.

    This is the linear program over occupation measures, solved by Dantzig-Wolfe decomposition: its vertices are
    deterministic policies, found one by one by backward induction for the prices (dual values) of the constraints;
    HiGHS mixes those found so far. It ends when no policy is worth more than its price.
    """
    requirement = parse(requirement) if isinstance(requirement, str) else requirement
    process = unfold(domain, [c.formula for c in requirement.constraints])
    sign = 1.0 if requirement.goal.maximize else -1.0
    goal = np.array([sign] + [0.0] * len(requirement.constraints))
    columns = [_backwards(process, goal)]
    for constraint, price in zip(requirement.constraints, np.eye(len(goal))[1:], strict=True):
        columns += [_backwards(process, price * (1.0 if _is_lower(constraint) else -1.0))]
    for feasibility in (True, False):  # first find a mixture that meets all bounds, then the best of these
        while True:
            mixture = _mix(columns, requirement.constraints, sign, feasibility=feasibility)
            if mixture.violation > TOLERANCE and not feasibility:
                return None
            if feasibility and mixture.violation <= TOLERANCE:
                break
            found = _backwards(process, mixture.prices)
            if _worth(found, mixture.prices) <= mixture.worth + TOLERANCE:
                break
            columns.append(found)
        if mixture.violation > TOLERANCE:
            return None
    values = np.array([[c.expected_return, *c.probabilities] for c in columns])
    expected_return, *probabilities = mixture.weights @ values
    return Value(float(expected_return), tuple(map(float, probabilities)))


class _Mixture(NamedTuple):
    weights: NDArray[np.float64]  # [columns]
    prices: NDArray[np.float64]  # [1+K] of return and probabilities: what a further policy would have to beat
    worth: float  # at these prices, of what is there
    violation: float  # of the constraints, in total


def _mix(
    columns: list[Value], constraints: tuple[Constraint, ...], sign: float, *, feasibility: bool
) -> _Mixture:
    """The best mixture of policies: least violation of the constraints, or best return without any."""
    returns = sign * np.array([c.expected_return for c in columns])
    from scipy.optimize import linprog  # takes long to import

    probabilities = np.array([c.probabilities for c in columns]).reshape(len(columns), -1)
    sides = [
        (k, way, bound)
        for k, c in enumerate(constraints)
        for way, bound in ((-1.0, -c.lower), (1.0, c.upper))  # way * P_k <= bound
        if (c.lower > 0.0 if way < 0 else c.upper < 1.0)
    ]
    rows = np.array([way * probabilities[:, k] for k, way, _ in sides]).reshape(len(sides), len(columns))
    slack = -np.eye(len(sides))
    cost = np.concatenate(
        [np.zeros(len(columns)) if feasibility else -returns, np.ones(len(sides)) * feasibility]
    )
    solved = linprog(
        cost,
        A_ub=np.concatenate([rows, slack], axis=1) if sides else None,
        b_ub=[bound for *_, bound in sides] if sides else None,
        A_eq=[[1.0] * len(columns) + [0.0] * len(sides)],
        b_eq=[1.0],
        bounds=[(0.0, None)] * len(columns) + [(0.0, None if feasibility else 0.0)] * len(sides),
        method="highs",
        options={"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10},
    )
    if not solved.success:
        raise RunError(f"the linear program of the optimum was not solved: {solved.message}")
    prices = np.zeros(1 + len(constraints))
    prices[0] = 0.0 if feasibility else sign
    for (k, way, _), dual in zip(sides, solved.ineqlin.marginals if sides else [], strict=True):
        prices[1 + k] += way * dual
    return _Mixture(
        solved.x[: len(columns)],
        prices,
        float(-solved.eqlin.marginals[0]),
        float(solved.x[len(columns) :].sum()),
    )


def _backwards(graph: Unfolding, prices: NDArray[np.float64]) -> Value:
    """Backward induction; where there are choices, the best action at these prices of return and probabilities."""
    values = np.zeros((0, len(prices)))  # [M, 1+K] of the layer below
    for layer in reversed(graph.layers):
        at_end = np.concatenate([np.zeros((len(layer.final), 1)), layer.satisfied], axis=1)
        if len(values):
            ahead = values[layer.successor]  # [M, actions, C, 1+K]
            ahead[..., 0] += layer.reward
            each = np.einsum("c,macv->mav", graph.chances, ahead)
            best = np.argmax(each @ prices, axis=1)
            values = np.where(layer.final[:, None], at_end, each[np.arange(len(best)), best])
        else:
            values = at_end
    expected_return, *probabilities = graph.start @ values
    return Value(float(expected_return), tuple(map(float, probabilities)))


def _worth(value: Value, prices: NDArray[np.float64]) -> float:
    return float(prices @ [value.expected_return, *value.probabilities])


def _is_lower(constraint: Constraint) -> bool:
    return constraint.upper >= 1.0


def _meets(constraint: Constraint, p: float) -> bool:
    above = p > constraint.lower if constraint.comparison == ">" else p >= constraint.lower - TOLERANCE
    below = p < constraint.upper if constraint.comparison == "<" else p <= constraint.upper + TOLERANCE
    return above and below
