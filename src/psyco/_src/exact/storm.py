"""Values of a policy by the model checker Storm, a second opinion: it evaluates the formulas on a chain of its own."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from psyco._src.core.errors import RequirementError, RunError
from psyco._src.envs.base import Domain
from psyco._src.exact.model_export import ExplicitModel, drn, explicit_model
from psyco._src.exact.plain_chain import plain_chain
from psyco._src.exact.solver import Value
from psyco._src.exact.unfold import Unfolding
from psyco._src.logic.ast import (
    Bound,
    Connective,
    Expectation,
    Formula,
    LongRun,
    Not,
    Over,
    Reaching,
    Requirement,
    Temporal,
    Total,
    is_state_formula,
    without_implications,
)
from psyco._src.logic.parser import parse
from psyco._src.policies.external import PolicyLike

MAX_PROPERTY_LENGTH = 100_000  # characters


def storm_value(policy: PolicyLike, domain: Domain, requirement: Requirement | str) -> Value:
    """Return the exact probabilities, expected values and return of a policy by Storm (`psyco[storm]`).

    Args:
        policy: any policy that `verify` accepts.
        domain: a finite one.
        requirement: as text or parsed; Storm computes the values of its constraints.
    """
    requirement = parse(requirement) if isinstance(requirement, str) else requirement
    if requirement.bounds_cvar:
        raise RunError("Storm does not compute a CVaR; leave that constraint out, or --storm")
    expectations = [each for each in requirement.constraints if isinstance(each, Expectation)]
    quantities = [each.subject for each in expectations]
    reaching = [each.over.body for each in quantities if isinstance(each.over, Reaching)]
    formulas = [constraint.formula for constraint in requirement.probability_constraints]
    graph = plain_chain(policy, domain, [*formulas, *reaching], quantities)  # Storm gets the latter as atoms
    loaded = load_model(explicit_model(graph, start=False))
    probabilities = []
    for constraint in requirement.probability_constraints:
        prefix, path = storm_property(constraint.formula, graph.atoms)
        p = float(graph.start @ _check_property(loaded, f"P=? [ {path} ]", len(graph.start)))
        probabilities.append(1.0 - p if prefix == "!" else p)
    expected_return = graph.start @ _check_property(loaded, 'R{"total"}=? [ F "end" ]', len(graph.start))
    expected = tuple(_expected(graph, i, each.over) for i, each in enumerate(quantities))
    return Value(float(expected_return), tuple(probabilities), expected)


def _expected(graph: Unfolding, quantity: int, over: Over) -> float:
    """Return the expected value of a quantity; its values at each step are Storm's rewards."""
    loaded = load_model(explicit_model(graph, start=False, quantity=quantity, restart=isinstance(over, LongRun)))
    match over:
        case Total(int(steps)):
            query = f"C<={steps}"
        case Reaching(body):
            query = f'F ({_to_ltl(body, graph.atoms)} | "end")'
        case LongRun():
            query = "LRA"
        case _:
            query = 'F "end"'
    found = graph.start @ _check_property(loaded, f'R{{"total"}}=? [ {query} ]', len(graph.start))
    return float(found + graph.initial_gains[quantity])


def load_model(model: ExplicitModel) -> Any:
    """Return the model in Storm, loaded through a `.drn` file."""
    stormpy = import_stormpy()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.drn"
        file.write_text("".join(f"{line}\n" for line in drn(model)), encoding="ascii")
        return stormpy.build_model_from_drn(str(file))


def storm_property(formula: Formula, atoms: tuple[Formula, ...]) -> tuple[str, str]:
    """Return a prefix, `!` for the complement or empty, and Storm's path formula over the labels a0, a1, ...

    Storm has no G<=k, W and R, and evaluates bounded operators by their definition only at the top level. So those
    become F<=k or U<=k of state formulas, and all others are expanded with X.
    """
    prefix = ""
    while isinstance(formula, Not):
        prefix, formula = "" if prefix else "!", formula.body
    match formula:
        case Temporal("G", (body,), Bound() as bound) if is_state_formula(body):
            prefix, formula = "" if prefix else "!", Temporal("F", (Not(body),), bound)
    match formula:
        case Temporal("F", (body,), Bound(0, upper)) if is_state_formula(body):
            text = f"F<={upper} {_to_ltl(body, atoms)}"
        case Temporal("U", (left, right), Bound(0, upper)) if all(map(is_state_formula, formula.operands)):
            text = f"{_to_ltl(left, atoms)} U<={upper} {_to_ltl(right, atoms)}"
        case _:
            text = _to_ltl(formula, atoms)
    if len(text) > MAX_PROPERTY_LENGTH:
        raise RequirementError(
            f"expanded for Storm, the formula has {len(text):,} characters", advice="lower its nested bounds"
        )
    return prefix, text


def _to_ltl(formula: Formula, atoms: tuple[Formula, ...]) -> str:
    """Return the formula in linear temporal logic without bounds."""

    def ltl(part: Formula) -> str:
        return _to_ltl(part, atoms)

    if is_state_formula(formula):
        if isinstance(formula, Not) and formula not in atoms:
            return f"(!{ltl(formula.body)})"
        return f'"a{atoms.index(formula)}"'
    match without_implications(formula):
        case Not(body):
            return f"(!{ltl(body)})"
        case Connective("&", operands):
            return f"({' & '.join(map(ltl, operands))})"
        case Connective("|", operands):
            return f"({' | '.join(map(ltl, operands))})"
        case Temporal("X", (body,)):
            return f"(X {ltl(body)})"
        case Temporal("F", (body,), None):
            return f"(F {ltl(body)})"
        case Temporal("G", (body,), None):
            return f"(G {ltl(body)})"
        case Temporal("U", (left, right), None):
            return f"({ltl(left)} U {ltl(right)})"
        case Temporal("W", (left, right), None):
            return f"(({ltl(left)} U {ltl(right)}) | (G {ltl(left)}))"
        case Temporal("R", (left, right), None):
            return f"(!((!{ltl(left)}) U (!{ltl(right)})))"
        case Temporal("F", (body,), bound):
            return _expand_bound(None, ltl(body), bound, strong=True)
        case Temporal("G", (body,), bound):
            return f"(!{_expand_bound(None, f'(!{ltl(body)})', bound, strong=True)})"
        case Temporal("U", (left, right), bound):
            return _expand_bound(ltl(left), ltl(right), bound, strong=True)
        case Temporal("W", (left, right), bound):
            return _expand_bound(ltl(left), ltl(right), bound, strong=False)
        case Temporal("R", (left, right), bound):
            return f"(!{_expand_bound(f'(!{ltl(left)})', f'(!{ltl(right)})', bound, strong=True)})"
    raise TypeError(f"not a formula: {formula}")


def _expand_bound(left: str | None, right: str, bound: Bound | None, *, strong: bool) -> str:
    """Return left U[a,b] right, or W if it is not strong, expanded with X."""
    lower, upper = (bound.lower, bound.upper) if bound else (0, 0)
    text = right if strong else f"({right} | {left})"
    for step in range(upper - 1, -1, -1):
        later = f"(X {text})" if left is None else f"({left} & (X {text}))"
        text = later if step < lower else f"({right} | {later})"
    return text


def _check_property(model: Any, text: str, initial: int) -> NDArray[np.float64]:
    stormpy = import_stormpy()
    (query,) = stormpy.parse_properties(text)
    # The default environment has errors up to 1e-6 in long-run averages.
    result = stormpy.model_checking(model, query, environment=stormpy.environments.exact())
    return np.array([result.get_value(state) for state in range(initial)])


def import_stormpy() -> Any:
    """Return the module `stormpy`, or raise RunError with the way to install it."""
    try:
        import stormpy
    except ImportError:
        raise RunError('answers of Storm need stormpy: pip install "psyco[storm]"') from None
    return stormpy
