"""Properties in English: as a sentence that parses to the same property, where there is one, and in words."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from psyco._src.core.errors import RequirementError
from psyco._src.logic.ast import (
    END,
    Bool,
    Bound,
    Compare,
    Connective,
    Constraint,
    Expectation,
    Formula,
    Goal,
    Instant,
    Label,
    LongRun,
    Not,
    Number,
    Quantified,
    Quantity,
    Question,
    Reaching,
    Requirement,
    Signal,
    Temporal,
    Total,
)
from psyco._src.logic.parser import parse
from psyco._src.logic.quantifiers import SHARED, dotted_signals

COMPARATIVE_WORDS = {
    ">=": "at least",
    "<=": "at most",
    ">": "more than",
    "<": "less than",
    "=": "equal to",
    "!=": "different from",
}
SYSTEM = "the system"  # the subject of a sentence about a formula


class PropertyText(NamedTuple):
    """A property as formula, as a sentence of structured English if there is one, and in words."""

    formula: str
    sentence: str | None
    words: str


def paraphrase(requirement: Requirement) -> list[PropertyText]:
    """Return every property of a requirement, its goal first."""
    properties = (requirement.goal, *requirement.constraints, *requirement.questions)
    return [PropertyText(str(each), sentence_of(each), words_of(each)) for each in properties]


def sentence_of(stated: Goal | Constraint | Expectation | Question) -> str | None:
    """Return a sentence that parses to the property; None where structured English has none."""
    if isinstance(stated, Goal):
        return _headed(f"{'maximise' if stated.maximize else 'minimise'} the return", stated.name)
    if not isinstance(stated, Constraint):
        return None
    tail = f"with probability {_bound_words(stated)}"
    if stated.environments is not None:
        tail += f" in {Number(round(100 * stated.environments, 10))}% of environments"
    tail += f", {Number(round(100 * stated.confidence, 10))}% sure"
    for clauses in _clauses(stated.formula):
        text = _headed(f"{stated.for_each or ''}{clauses} {tail}", stated.name)
        if _means(text, stated):
            return text
    return None


def _means(text: str, stated: Constraint) -> bool:
    try:
        return parse(text).constraints == (stated,)
    except RequirementError:  # a signal may have the name of a word that sentences reserve
        return False


def _headed(text: str, name: str | None) -> str:
    return text if name is None else f'"{name}": {text}'


# ---- sentences -----------------------------------------------------------------------------------------------


def _clauses(formula: Formula) -> Iterator[str]:
    """Yield sentences that may mean the formula, without their probability."""
    match formula:
        case Temporal("W", (Not(began), Connective("&", (start, inner))), None) if began == start:
            yield from (f"after {state_words(start)}, {clause}" for clause in _clauses(inner))
        case Temporal("G", (Connective("=>", (condition, inner)),), None):
            yield from (f"whenever {state_words(condition)}, {clause}" for clause in _timings(inner))
        case Connective("&", (Connective("=>", (condition, inner)), _)):
            yield from (f"when {state_words(condition)}, {clause}" for clause in _timings(inner))
    yield from _timings(formula)


def _timings(formula: Formula) -> Iterator[str]:
    match formula:
        case Temporal("G", (Not(body),), bound):
            yield from _responses("never", body, _window("for", bound))
        case Temporal("X", (body,)):
            yield from _responses("", body, "at the next step")
        case Temporal("W", (Not(body), until), None):
            yield from _responses("never", body, f"until {state_words(until)}")
        case Temporal("R", (body, Not(until)), None):
            yield from _responses("", body, f"before {state_words(until)}")
        case Temporal("U", (Not(until), Connective("&", (body, Not(again)))), None) if again == until:
            yield from _responses("eventually", body, f"before {state_words(until)}")
        case Temporal("F", (Connective("&", (ended, body)),), None) if ended == END:
            yield from _responses("finally", body, "")
        case Connective("&", (Temporal("G", (Not(),), Bound(0, steps)), Temporal("F", (body,), Bound(0, _)))):
            yield from _responses("", body, f"after {steps} steps")
    match formula:
        case Temporal("G", (body,), bound):
            yield from _responses("" if bound and not bound.lower else "always", body, _window("for", bound))
        case Temporal("F", (body,), None):
            yield from _responses("eventually", body, "")
        case Temporal("F", (body,), Bound(lower, upper)) if lower == upper > 0:
            yield from _responses("", body, f"{upper} steps later")
        case Temporal("F", (body,), bound):
            yield from _responses("eventually" if bound and bound.lower else "", body, _window("within", bound))
        case Temporal("W", (body, until), None):
            yield from _responses("", body, f"until {state_words(until)}")
        case Temporal():
            pass
        case _:
            yield from _responses("immediately", formula, "")


def _window(word: str, bound: Bound | None) -> str:
    if bound is None:
        return ""
    return f"from step {bound.lower} to {bound.upper}" if bound.lower else f"{word} {bound.upper} steps"


def _responses(quantifier: str, body: Formula, window: str) -> Iterator[str]:
    before, after = f"shall {quantifier} ".replace("  ", " "), f" {window}".rstrip()
    match body:
        case Compare(operator, left, right):
            yield f"{left} {before}be {COMPARATIVE_WORDS[operator]} {right}{after}"
    yield f"{SYSTEM} {before}satisfy {state_words(body)}{after}"
    yield f"{SYSTEM} {before}satisfy ({body}){after}"


def state_words(formula: Formula) -> str:
    """Return a state formula in words that can be parsed again: `distance is at least 0.1 or crashed`."""

    def operand(part: Formula) -> str:
        text = state_words(part)
        return f"({text})" if isinstance(part, Connective | Temporal) else text

    match formula:
        case Compare(operator, left, right):
            return f"{left} is {COMPARATIVE_WORDS[operator]} {right}"
        case Not(body):
            return f"not {operand(body)}"
        case Connective("&" | "|" as operator, operands):
            return (" and " if operator == "&" else " or ").join(map(operand, operands))
        case Connective(operator, operands):
            return f" {operator} ".join(map(operand, operands))
    return str(formula)


# ---- words -----------------------------------------------------------------------------------------------------


def words_of(stated: Goal | Constraint | Expectation | Question) -> str:
    """Return the meaning of a property in plain words."""
    if not isinstance(stated, Goal) and (group := stated.for_each) is not None:
        return f"For each {group.name} by itself: {_lower(words_of(replace(stated, for_each=None)))}"
    match stated:
        case Goal(maximize):
            return f"{'Maximise' if maximize else 'Minimise'} the expected return of an episode."
        case Constraint():
            family = "" if stated.environments is None else f"in {stated.environments:.6g} of all environments, "
            said = (
                f"{family}an episode has this property with probability {_bound_words(stated)}: {_path(stated.formula)}"
            )
            return f"{said[0].upper()}{said[1:]}. {_shown(stated.confidence)}"
        case Expectation():
            return f"{_measured(stated.subject)} is {_bound_words(stated)}. {_shown(stated.confidence)}"
    of = {"max": "the largest, over all controllers, of ", "min": "the smallest, over all controllers, of "}
    subject = stated.subject
    noun = _lower(_measured(subject)) if isinstance(subject, Quantity) else f"the probability that: {_path(subject)}"
    return f"Find {of.get(stated.best or '', '')}{noun}, with an interval at confidence {stated.confidence:.6g}."


def _lower(text: str) -> str:
    return text[0].lower() + text[1:]


def _shown(confidence: float) -> str:
    return f"This is shown with an error rate of at most {round(1.0 - confidence, 12):.6g}."


def _bound_words(stated: Constraint | Expectation) -> str:
    if stated.comparison == "in":
        return f"between {Number(stated.lower)} and {Number(stated.upper)}"
    end = stated.lower if ">" in stated.comparison else stated.upper
    return f"{COMPARATIVE_WORDS[stated.comparison]} {Number(end)}"


def _measured(quantity: Quantity) -> str:
    body = quantity.body
    what = str(body) if not isinstance(body, Label | Compare | Not | Connective | Bool) else f"[{_path(body)}]"
    match quantity.over:
        case Total(None):
            value = f"the sum of {what} over an episode"
        case Total(steps):
            value = f"the sum of {what} over the first {steps} steps"
        case Instant(step):
            value = f"the value of {what} in state {step}"
        case Reaching(until):
            value = f"the sum of {what} until {_path(until)}"
        case LongRun(share):
            return f"The long-run share of steps with {what}" if share else f"The long-run average of {what} per step"
    if quantity.cvar is None:
        return f"The expected value of {value}"
    return f"The mean, over the worst {100 * (1 - quantity.cvar):.6g}% of episodes, of {value}"


def _path(formula: Formula) -> str:
    """Return a formula in plain words, from the state at which it is evaluated."""
    match formula:
        case Compare(operator, left, right):
            return f"{left} is {COMPARATIVE_WORDS[operator]} {right}"
        case Bool(value):
            return "true" if value else "false"
        case Label():
            return "the episode ends here" if formula == END else f"{formula.name} holds"
        case Signal():
            return f"{formula} holds"
        case Not(body):
            return f"not ({_path(body)})"
        case Quantified(quantifier, body):
            groups = [group for group in dotted_signals(body) if group not in SHARED]
            which = "every" if quantifier == "each" else "some"
            return f"for {which} {groups[0] if len(groups) == 1 else 'agent'}, {_grouped(body)}"
        case Connective(operator, operands):
            word = {"&": " and ", "|": " or ", "=>": " implies ", "<=>": " exactly if "}[operator]
            return word.join(map(_grouped, operands))
        case Temporal("X", (body,)):
            return f"in the next state, {_grouped(body)}"
        case Temporal("F", (body,), bound):
            return f"in some state{_when(bound)}, {_grouped(body)}"
        case Temporal("G", (body,), bound):
            return f"in every state{_when(bound)}, {_grouped(body)}"
    first, second = map(_grouped, formula.operands)
    if formula.operator == "R":
        return f"in every state{_when(formula.bound)} up to and including the first with {first}, {second}"
    until = f"in some state{_when(formula.bound)}, {second}, and in every state before that, {first}"
    if formula.operator == "U":
        return until
    if formula.bound and formula.bound.lower:
        return f"{until}; or {first} in every state up to {formula.bound.upper} steps ahead"
    return f"in every state{_when(formula.bound)} before the first with {second}, {first}"


def _grouped(formula: Formula) -> str:
    text = _path(formula)
    return f"({text})" if isinstance(formula, Connective | Temporal | Quantified) else text


def _when(bound: Bound | None) -> str:
    if bound is None:
        return ""
    if bound.lower == bound.upper:
        return f" {bound.upper} steps ahead"
    return f" {bound.lower} to {bound.upper} steps ahead" if bound.lower else f" within {bound.upper} steps"
