"""Storm as a second opinion: it reads the chain without our bookkeeping of formulas, and does its own."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from psyco._src.core.errors import RequirementError, RunError
from psyco._src.envs.base import Domain
from psyco._src.exact.model_export import ExplicitModel, drn, explicit
from psyco._src.exact.solver import Value
from psyco._src.exact.unfold import Unfolding, actions_of, unfold
from psyco._src.logic.ast import (
    And,
    Bound,
    Expectation,
    Finally,
    Formula,
    Globally,
    LongRun,
    Next,
    Not,
    Or,
    Over,
    Reaching,
    Release,
    Requirement,
    Total,
    Until,
    WeakUntil,
    is_state_formula,
)
from psyco._src.logic.parser import parse
from psyco._src.logic.progression import connectives
from psyco._src.policies.external import PolicyLike

LONGEST = 100_000  # characters of a property that Storm is asked about


def storm_value(policy: PolicyLike, domain: Domain, requirement: Requirement | str) -> Value:
    """The exact probabilities, expected values and return of a policy by Storm (`psyco[storm]`).

    Args:
        policy: whatever `verify` takes.
        domain: one that can be enumerated.
        requirement: its constraints are what Storm is asked about; as text or parsed.
    """
    requirement = parse(requirement) if isinstance(requirement, str) else requirement
    expectations = [each for each in requirement.constraints if isinstance(each, Expectation)]
    quantities = [each.subject for each in expectations]
    reaching = [each.over.body for each in quantities if isinstance(each.over, Reaching)]
    graph = unfold(
        domain,
        [*(c.formula for c in requirement.probabilities), *reaching],  # Storm gets the latter as atoms
        actions_of(policy, domain),
        quantities=quantities,
        follow=False,
    )
    loaded = load(explicit(graph, start=False))
    probabilities = []
    for constraint in requirement.probabilities:
        prefix, path = storm_property(constraint.formula, graph.atoms)
        p = float(graph.start @ _check(loaded, f"P=? [ {path} ]", len(graph.start)))
        probabilities.append(1.0 - p if prefix == "!" else p)
    expected_return = graph.start @ _check(loaded, 'R{"return"}=? [ F "end" ]', len(graph.start))
    expected = tuple(_expected(graph, i, each.over) for i, each in enumerate(quantities))
    return Value(float(expected_return), tuple(probabilities), expected)


def _expected(graph: Unfolding, quantity: int, over: Over) -> float:
    """The expected value of a quantity; Storm is told what each step is worth, and adds up."""
    loaded = load(explicit(graph, start=False, quantity=quantity, restart=isinstance(over, LongRun)))
    match over:
        case Total(int(steps)):
            asked = f"C<={steps}"
        case Reaching(body):
            asked = f'F ({_spelt(body, graph.atoms)} | "end")'
        case LongRun():
            asked = "LRA"
        case _:
            asked = 'F "end"'
    found = graph.start @ _check(loaded, f'R{{"return"}}=? [ {asked} ]', len(graph.start))
    return float(found + graph.initial[quantity])


def load(model: ExplicitModel) -> Any:
    """The model in Storm, by way of a `.drn` file."""
    stormpy = _stormpy()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.drn"
        file.write_text("".join(f"{line}\n" for line in drn(model)), encoding="ascii")
        return stormpy.build_model_from_drn(str(file))


def storm_property(formula: Formula, atoms: tuple[Formula, ...]) -> tuple[str, str]:
    """A formula as Storm's path formula over the labels a0, a1, ...; a prefix `!` asks for the complement.

    Storm has no G<=k, W and R, and checks bounded operators by their definition only where they stand alone. So
    those go in as F<=k or U<=k of state formulas, and all others are spelt out with X.
    """
    prefix = ""
    while isinstance(formula, Not):
        prefix, formula = "" if prefix else "!", formula.body
    if isinstance(formula, Globally) and formula.bound is not None and is_state_formula(formula.body):
        prefix, formula = "" if prefix else "!", Finally(Not(formula.body), formula.bound)
    match formula:
        case Finally(body, Bound(0, upper)) if is_state_formula(body):
            text = f"F<={upper} {_spelt(body, atoms)}"
        case Until(left, right, Bound(0, upper)) if is_state_formula(left) and is_state_formula(right):
            text = f"{_spelt(left, atoms)} U<={upper} {_spelt(right, atoms)}"
        case _:
            text = _spelt(formula, atoms)
    if len(text) > LONGEST:
        raise RequirementError(
            f"spelt out for Storm, the formula has {len(text):,} characters", advice="lower its nested bounds"
        )
    return prefix, text


def _spelt(formula: Formula, atoms: tuple[Formula, ...]) -> str:
    """Linear temporal logic without bounds."""

    def spelt(part: Formula) -> str:
        return _spelt(part, atoms)

    if is_state_formula(formula):
        if isinstance(formula, Not) and formula not in atoms:
            return f"(!{spelt(formula.body)})"
        return f'"a{atoms.index(formula)}"'
    match connectives(formula):
        case Not(body):
            return f"(!{spelt(body)})"
        case And(operands):
            return f"({' & '.join(map(spelt, operands))})"
        case Or(operands):
            return f"({' | '.join(map(spelt, operands))})"
        case Next(body):
            return f"(X {spelt(body)})"
        case Finally(body, None):
            return f"(F {spelt(body)})"
        case Globally(body, None):
            return f"(G {spelt(body)})"
        case Until(left, right, None):
            return f"({spelt(left)} U {spelt(right)})"
        case WeakUntil(left, right, None):
            return f"(({spelt(left)} U {spelt(right)}) | (G {spelt(left)}))"
        case Release(left, right, None):
            return f"(!((!{spelt(left)}) U (!{spelt(right)})))"
        case Finally(body, bound):
            return _window(None, spelt(body), bound, strong=True)
        case Globally(body, bound):
            return f"(!{_window(None, f'(!{spelt(body)})', bound, strong=True)})"
        case Until(left, right, bound):
            return _window(spelt(left), spelt(right), bound, strong=True)
        case WeakUntil(left, right, bound):
            return _window(spelt(left), spelt(right), bound, strong=False)
        case Release(left, right, bound):
            return f"(!{_window(f'(!{spelt(left)})', f'(!{spelt(right)})', bound, strong=True)})"
    raise TypeError(f"not a formula: {formula}")


def _window(left: str | None, right: str, bound: Bound | None, *, strong: bool) -> str:
    """left U[a,b] right, or with W if it is not strong, step by step."""
    lower, upper = (bound.lower, bound.upper) if bound else (0, 0)
    text = right if strong else f"({right} | {left})"
    for step in range(upper - 1, -1, -1):
        goes_on = f"(X {text})" if left is None else f"({left} & (X {text}))"
        text = goes_on if step < lower else f"({right} | {goes_on})"
    return text


def _check(model: Any, text: str, initial: int) -> NDArray[np.float64]:
    stormpy = _stormpy()
    (asked,) = stormpy.parse_properties(text)
    # Not the default: long-run averages would be off by up to 1e-6.
    result = stormpy.model_checking(model, asked, environment=stormpy.environments.exact())
    return np.array([result.get_value(state) for state in range(initial)])


def _stormpy() -> Any:
    try:
        import stormpy
    except ImportError:
        raise RunError('Storm\'s second opinion needs stormpy: pip install "psyco[storm]"') from None
    return stormpy
