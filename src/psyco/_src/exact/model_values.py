"""Exact answers on PRISM and JANI models by Storm: of a chain, of a policy on the states it reaches, and optima."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from psyco._src.core.errors import RequirementError, RunError
from psyco._src.envs.model_file import ModelFile
from psyco._src.envs.model_tables import ModelTables
from psyco._src.envs.program_file import ProgramFile
from psyco._src.exact.model_explore import reached_chain
from psyco._src.exact.solver import ExactAnswer, Value, satisfies
from psyco._src.exact.storm import import_stormpy, storm_property
from psyco._src.exact.unfold import Act, policy_actions
from psyco._src.logic.ast import (
    Bound,
    Connective,
    Constraint,
    Expectation,
    Formula,
    Instant,
    LongRun,
    Not,
    Quantity,
    Question,
    Reaching,
    Requirement,
    Signal,
    Temporal,
    Total,
    is_state_formula,
)
from psyco._src.logic.progression import state_formulas
from psyco._src.logic.validate import check_bounds, check_signals
from psyco._src.policies.external import PolicyLike
from psyco._src.verification.base import Guarantee, Verdict

MAX_EXACT_STATES = 2000  # up to which Storm solves by elimination; larger models with this relative error:
RELATIVE_ERROR = 1e-6
OPTIMUM_ERROR = "1/10000000000"  # relative error of an optimum of a model that is not larger
MULTI_DIGITS = 4  # decimals of an optimum under constraints: Storm computes it with an error of 1e-4

BY_STORM = Guarantee(
    "exact",
    "Storm computed the values on the model, on the states that the policy reaches: up to a relative error of 1e-6 "
    "this is no estimate.",
    0.0,
    0.0,
)
OPTIMUM_BY_STORM = replace(
    BY_STORM, statement=BY_STORM.statement.replace("the states that the policy reaches", "all policies")
)


class Optimum(NamedTuple):
    """The smallest and largest values of a property over all policies, those with memory and chance included."""

    text: str
    smallest: float
    largest: float


class _Part(NamedTuple):
    """Some states of a model with some of their choices; the first state is the initial one."""

    tables: ModelTables
    states: NDArray[np.int64]  # [n]
    first: NDArray[np.int64]  # [n+1] of their choices
    choices: NDArray[np.int64]  # [m]
    stays: NDArray[np.bool_]  # [n] where an episode has ended: these states are not left, and nothing is gained there
    nondeterministic: bool

    @property
    def error(self) -> float:
        """Relative error of Storm's values."""
        return 0.0 if len(self.states) <= MAX_EXACT_STATES else RELATIVE_ERROR


def model_exact(policy: PolicyLike, domain: ModelFile | ProgramFile, requirement: Requirement) -> ExactAnswer:
    """Return the exact values of a policy on a model, by Storm."""
    act = policy_actions(policy, domain)
    if isinstance(domain, ProgramFile):
        _refuse_optima(domain, [question.best for question in requirement.questions])
        domain = reached_chain(domain, act)
    _check(domain, requirement)
    if requirement.only_optima:
        everything = whole_part(domain)
        best = tuple(_solve(domain, everything, each.subject, each.best or "") for each in requirement.questions)
        states = len(everything.states)
        return ExactAnswer(Verdict.ANSWERED, Value(math.nan, (), ()), None, states, best, OPTIMUM_BY_STORM)
    part = reached_part(domain, act)
    whole: _Part | None = None

    def value(stated: Constraint | Expectation | Question) -> float:
        nonlocal whole
        subject = stated.formula if isinstance(stated, Constraint) else stated.subject
        if isinstance(stated, Question) and stated.best is not None:
            whole = whole or whole_part(domain)
            return _solve(domain, whole, subject, stated.best)
        return _solve(domain, part, subject)

    found = [value(stated) for stated in requirement.constraints]
    answers = tuple(value(question) for question in requirement.questions)
    holds = [_holds(stated, number, part.error) for stated, number in zip(requirement.constraints, found, strict=True)]
    asked = requirement.questions and not requirement.constraints
    pairs = list(zip(requirement.constraints, found, strict=True))
    numbers = Value(
        _expected_return(domain, part),
        tuple(number for stated, number in pairs if isinstance(stated, Constraint)),
        tuple(number for stated, number in pairs if isinstance(stated, Expectation)),
    )
    verdict = Verdict.VIOLATED if False in holds else Verdict.UNDECIDED if None in holds else Verdict.SATISFIED
    verdict = Verdict.ANSWERED if asked else verdict
    return ExactAnswer(verdict, numbers, None, len(part.states), answers, BY_STORM)


def model_optimum(domain: ModelFile | ProgramFile, requirement: Requirement) -> list[Optimum]:
    """Return the optima of all properties of a requirement over all policies, by Storm.

    Under constraints, the last one is the best expected return; NaN, with the reason in its text, if there is none.
    """
    if isinstance(domain, ProgramFile):
        _refuse_optima(domain, ["max"])
        raise AssertionError(domain)
    _check(domain, requirement)
    part, found = whole_part(domain), []
    for stated in (*requirement.constraints, *requirement.questions):
        subject = stated.formula if isinstance(stated, Constraint) else stated.subject
        text = subject.text("=?") if isinstance(subject, Quantity) else f"P=? [ {subject} ]"
        low, high = (_solve(domain, part, subject, best) for best in ("min", "max"))
        found.append(Optimum(text, low, high))
    if requirement.constraints and domain.reward is not None:
        spans = zip(requirement.constraints, found, strict=False)
        binding = [stated for stated, span in spans if not _is_met_by_all(stated, span)]
        found.append(_constrained(domain, part, requirement, binding))
    return found


def _is_met_by_all(stated: Constraint | Expectation, span: Optimum) -> bool:
    """Whether every policy meets a bound. At such an edge Storm's values for several objectives are inaccurate."""
    return satisfies(stated, span.smallest) and satisfies(stated, span.largest)


def _refuse_optima(domain: ProgramFile, best: list[str | None]) -> None:
    """Raise RunError for an optimum over the policies of a model that is not built."""
    if any(each is not None for each in best):
        raise RunError(
            f"{domain.name} has more than {domain.max_states:,} states and is not built: an optimum over all policies "
            "needs all of them; raise max_states (--set max_states=N) if there is memory for it"
        )


def _holds(constraint: Constraint | Expectation, number: float, error: float) -> bool | None:
    """Return whether a constraint holds for a number with a relative error; None: the error is too large for that."""
    certain = isinstance(constraint, Constraint) and number in (0.0, 1.0)  # found on the graph, without numbers
    margin = 0.0 if certain or not math.isfinite(number) else error * max(1.0, abs(number))
    found = {satisfies(constraint, each) for each in (number - margin, number, number + margin)}
    return found.pop() if len(found) == 1 else None


def _check(domain: ModelFile, requirement: Requirement) -> None:
    check_signals(requirement, domain.signal_types(), domain.name)
    if not domain.open_ended:
        check_bounds(requirement, domain.horizon, domain.name)
    if domain.ends[domain.initial_state] and not domain.tables.absorbing[domain.initial_state]:
        raise RequirementError(f"until holds in the initial state of {domain.name}", advice="choose a later end")


# ---- states ---------------------------------------------------------------------------------------------------------


def reached_part(domain: ModelFile, act: Act) -> _Part:
    """Return the Markov chain of a policy: only states that it reaches."""
    tables = domain.tables
    number = np.full(tables.states, -1)
    found, chosen = [np.array([domain.initial_state])], []
    number[domain.initial_state], count = 0, 1
    while len(found[-1]):
        states = found[-1]
        offered = np.diff(tables.choices)[states]
        actions = np.zeros(len(states), np.int64) if domain.is_chain else act(domain.observations[states])
        chosen.append(tables.choices[states] + np.where(actions < offered, actions, 0))
        after = np.unique(tables.successor[_branches(tables, chosen[-1][~domain.ends[states]])])
        after = after[number[after] < 0]
        number[after] = count + np.arange(len(after))
        count += len(after)
        found.append(after.astype(np.int64))
    states = np.concatenate(found)
    first, choices = np.arange(len(states) + 1), np.concatenate(chosen)
    return _Part(tables, states, first, choices, domain.ends[states], nondeterministic=False)


def whole_part(domain: ModelFile) -> _Part:
    """Return the whole decision process, its initial state first."""
    tables = domain.tables
    states = np.arange(tables.states)
    states[[0, domain.initial_state]] = states[[domain.initial_state, 0]]
    counts = np.diff(tables.choices)[states]
    first = np.concatenate([[0], np.cumsum(counts)])
    choices = np.repeat(tables.choices[states] - first[:-1], counts) + np.arange(first[-1])
    return _Part(tables, states, first, choices, domain.ends[states], nondeterministic=True)


def _branches(tables: ModelTables, choices: NDArray[np.int64]) -> NDArray[np.int64]:
    counts = np.diff(tables.branches)[choices]
    ends = np.cumsum(counts)
    return np.repeat(tables.branches[choices] - (ends - counts), counts) + np.arange(counts.sum())


# ---- Storm ----------------------------------------------------------------------------------------------------------


def _solve(domain: ModelFile, part: _Part, subject: Formula | Quantity, best: str = "") -> float:
    """Return the value of a formula or quantity in the initial state; `best` is min or max over all choices."""
    if isinstance(subject, Quantity):
        return _expected(domain, part, subject, best)
    _check_states(domain, subject)
    if not domain.open_ended:
        subject = _within(subject, domain.horizon)
    atoms = state_formulas([subject])
    prefix, path = storm_property(subject, atoms)
    opposite = {"min": "max", "max": "min"}.get(best, "") if prefix == "!" else best
    labels = {f"a{i}": domain.tables.holds(atom)[part.states] for i, atom in enumerate(atoms)}
    value = _check_model(part, labels, None, f"P{opposite}=? [ {path} ]")
    return 1.0 - value if prefix == "!" else value


def _check_states(domain: ModelFile, formula: Formula) -> None:
    if not domain.is_about_states(formula):
        raise RequirementError(
            f"Storm answers formulas over variables and labels, not {formula}", advice="psyco verify samples it"
        )


def _within(formula: Formula, horizon: int) -> Formula:
    """Return the formula on episodes of at most `horizon` steps: it bounds the operators without a bound."""
    match formula:
        case Not(body):
            return Not(_within(body, horizon))
        case Connective(operator, operands) if not is_state_formula(formula):
            return Connective(operator, tuple(_within(each, horizon) for each in operands))
        case Temporal(operator, operands, bound):
            if not all(map(is_state_formula, operands)):
                raise RequirementError(
                    f"Storm does not answer nested operators on episodes with a horizon: {formula}",
                    advice="leave out the horizon (--set horizon=None), or psyco verify samples it",
                )
            return formula if operator == "X" else Temporal(operator, operands, bound or Bound(0, horizon))
    return formula


def _expected(domain: ModelFile, part: _Part, quantity: Quantity, best: str) -> float:
    if quantity.cvar is not None or isinstance(quantity.over, LongRun):
        raise RequirementError(f"Storm does not compute {quantity.text('=?')} here", advice="psyco verify samples it")
    if isinstance(quantity.over, Instant):
        if not domain.is_about_states(quantity.x):
            raise RequirementError(
                f"{quantity.text('=?')} asks for a step's value of a reward structure, which PRISM counts from another "
                "step",
                advice="write a term over variables or labels",
            )
        at = domain.tables.values(quantity.x)[part.states]
        return _check_model(part, {}, at, f'R{{"x"}}{best}=? [ I={quantity.over.step} ]', of_states=True)
    gains = _gains(domain, quantity)[part.choices]
    horizon = None if domain.open_ended else domain.horizon
    labels: dict[str, NDArray[np.bool_]] = {}
    match quantity.over:
        case Total(steps):
            bounds = [each for each in (steps, horizon) if each is not None]
            query = f"C<={min(bounds)}" if bounds else "C"
        case Reaching(body):
            _check_states(domain, body)
            labels["a0"] = domain.tables.holds(body)[part.states]
            query = 'F "a0"'
            if horizon is not None:  # from there on nothing is gained
                part, query = part._replace(stays=part.stays | labels["a0"]), f"C<={horizon}"
        case _:
            raise AssertionError(quantity)
    return _check_model(part, labels, gains, f'R{{"x"}}{best}=? [ {query} ]')


def _gains(domain: ModelFile, quantity: Quantity) -> NDArray[np.float64]:
    """Return what each choice gains `[M]` on average: a reward structure, or a value of the states it leads to."""
    tables, x = domain.tables, quantity.x
    names = {**tables.rewards, "reward": tables.rewards[domain.reward]} if domain.reward else dict(tables.rewards)
    if isinstance(x, Signal) and x.name in names:
        return np.asarray(names[x.name])
    if not domain.is_about_states(x):
        raise RequirementError(
            f"Storm sums a reward structure, or a term over variables; not {x}", advice="psyco verify samples it"
        )
    if domain.ends[domain.initial_state]:
        raise RequirementError(f"an episode of {domain.name} has no step: its initial state is absorbing")
    return np.add.reduceat(tables.probability * tables.values(x)[tables.successor], tables.branches[:-1])


def _expected_return(domain: ModelFile, part: _Part) -> float:
    if domain.reward is None:
        return 0.0
    return _expected(domain, part, Quantity(Signal(domain.reward), Total()), "")


def _constrained(
    domain: ModelFile, part: _Part, requirement: Requirement, binding: Sequence[Constraint | Expectation]
) -> Optimum:
    """Return the best expected return under constraints on probabilities, by Storm; NaN and why if it has none.

    Args:
        domain: the model.
        part: all of its states.
        requirement: goal and constraints.
        binding: the constraints that some policy misses.
    """
    goal = "max" if requirement.goal.maximize else "min"
    labels: dict[str, NDArray[np.bool_]] = {}
    terms: list[str] = []
    for constraint in binding:
        if not isinstance(constraint, Constraint) or constraint.comparison == "in":
            raise RunError(f"the optimum under {constraint} is not computed; bound a probability from one side")
        _check_states(domain, constraint.formula)
        formula = constraint.formula if domain.open_ended else _within(constraint.formula, domain.horizon)
        atoms = state_formulas([formula])
        prefix, path = storm_property(formula, atoms)
        for i, atom in reversed(list(enumerate(atoms))):
            path = path.replace(f'"a{i}"', f'"b{len(terms)}_{i}"')
            labels[f"b{len(terms)}_{i}"] = domain.tables.holds(atom)[part.states]
        sign, bound = constraint.comparison[0], constraint.lower if ">" in constraint.comparison else constraint.upper
        if prefix == "!":
            sign, bound = {">": "<", "<": ">"}[sign], 1.0 - bound
        terms.append(f"P{sign}={bound} [ {path} ]")
    query = "C" if domain.open_ended else f"C<={domain.horizon}"
    gains = domain.tables.rewards[domain.reward or ""][part.choices]
    text = f'multi(R{{"x"}}{goal}=? [ {query} ], {", ".join(terms)})'
    title = f"R{{{domain.reward}}}{goal}=? [ {query} ] under the constraints"
    try:
        # Storm leaves out the policies with an infinite return.
        free = _expected(domain, part, Quantity(Signal(domain.reward or ""), Total()), goal)
        if not math.isfinite(free):
            raise RunError("not computed, since some policy has an infinite return")
        if not terms:
            return Optimum(f"{title}, which every policy meets", free, free)
        found = round(_check_model(part, labels, gains, text), MULTI_DIGITS)
    except RunError as error:
        return Optimum(f"{title}: {error}", math.nan, math.nan)
    return Optimum(f"{title}, up to an error of {2 * 10**-MULTI_DIGITS:g}", found, found)


def _check_model(
    part: _Part,
    labels: dict[str, NDArray[np.bool_]],
    gains: NDArray[np.float64] | None,
    text: str,
    *,
    of_states: bool = False,
) -> float:
    """Return Storm's value of a property in the initial state, with labels `[n]` and rewards of choices or states."""
    stormpy = import_stormpy()
    tables, number = part.tables, np.full(part.tables.states, -1)
    number[part.states] = np.arange(len(part.states))
    builder = stormpy.datastructures.SparseMatrixBuilder(
        rows=0, columns=0, entries=0, force_dimensions=False, has_custom_row_grouping=part.nondeterministic,
        row_groups=0,
    )  # fmt: skip
    counts = np.diff(tables.branches)[part.choices]
    ends = np.cumsum(counts)
    every = _branches(tables, part.choices)
    rows = np.repeat(np.arange(len(part.choices)), counts)
    columns = number[tables.successor[every]]
    order = np.lexsort((columns, rows))  # Storm wants the columns of a row in order
    to, chance = columns[order].tolist(), tables.probability[every][order].tolist()
    stops, groups = ends.tolist(), part.first.tolist()
    for state, stay in enumerate(part.stays.tolist()):
        if part.nondeterministic:
            builder.new_row_group(groups[state])
        for row in range(groups[state], groups[state + 1]):
            if stay:
                builder.add_next_value(row, state, 1.0)
                continue
            for entry in range(stops[row - 1] if row else 0, stops[row]):
                builder.add_next_value(row, to[entry], chance[entry])
    labeling = stormpy.models.StateLabeling(len(part.states))
    for name, holds in {"init": np.arange(len(part.states)) == 0, **labels}.items():
        labeling.add_label(name)
        marked = stormpy.datastructures.BitVector(len(part.states), np.flatnonzero(holds).tolist())
        labeling.set_states(name, marked)
    rewards = {}
    if gains is not None:
        if not of_states:
            gains = np.where(np.repeat(part.stays, np.diff(part.first)), 0.0, gains)
        place = "optional_state_reward_vector" if of_states else "optional_state_action_reward_vector"
        rewards["x"] = stormpy.models.SparseRewardModel(**{place: gains.tolist()})
    components = stormpy.models.SparseModelComponents(
        transition_matrix=builder.build(), state_labeling=labeling, reward_models=rewards
    )
    kind = stormpy.models.SparseMdp if part.nondeterministic else stormpy.models.SparseDtmc
    (query,) = stormpy.parse_properties(text)
    environment = stormpy.environments.sound()
    if len(part.states) <= MAX_EXACT_STATES and not text.startswith("multi"):
        if part.nondeterministic:  # Storm's exact methods may never end on choices: rounding lets them cycle
            environment.solver().min_max().precision = stormpy.Rational(OPTIMUM_ERROR)
        else:
            environment = stormpy.environments.exact()
    try:
        result = stormpy.model_checking(kind(components), query, environment=environment)
        if not hasattr(result, "get_value"):  # only whether there is a policy
            raise RunError("no policy meets the constraints")
        found = float(result.get_value(0))
    except RuntimeError as error:
        raise RunError(f"Storm did not answer {text}: {str(error)[:300]}") from None
    return found if math.isfinite(found) or "R" in text else math.nan
