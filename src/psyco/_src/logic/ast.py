"""The syntax tree of a requirement: frozen, hashable, and printed as text that parses back to an equal tree."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from html import escape
from math import inf
from typing import Any, ClassVar, Literal, TypeAlias, TypeGuard, get_args

from psyco._src.core.errors import SourceLocation

DEFAULT_CONFIDENCE = 0.95  # of a constraint that says nothing about its confidence

# ---- terms: what has a number as its value -----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Number:
    """A literal; not negative (-3 is `Minus(Number(3))`, as it is written)."""

    value: float

    def __str__(self) -> str:
        return repr(self.value).removesuffix(".0")


@dataclass(frozen=True, slots=True)
class Signal:
    """A named quantity of a state, `distance` or `obs[2]`: a term, or a formula where it is Boolean."""

    name: str
    index: int | None = None
    place: SourceLocation | None = field(default=None, compare=False, repr=False)

    def __str__(self) -> str:
        return self.name if self.index is None else f"{self.name}[{self.index}]"


@dataclass(frozen=True, slots=True)
class Minus:
    """-body"""

    body: Term

    def __str__(self) -> str:
        return f"-{_term(self.body, 3)}"


@dataclass(frozen=True, slots=True)
class Arith:
    """left + right, and so on with - * /"""

    operator: Literal["+", "-", "*", "/"]
    left: Term
    right: Term

    def __str__(self) -> str:
        level = _level(self)  # left associative: the right operand has to bind tighter
        return f"{_term(self.left, level)} {self.operator} {_term(self.right, level + 1)}"


@dataclass(frozen=True, slots=True)
class Call:
    """abs(x), min(x, y, ...), max(x, y, ...)"""

    function: Literal["abs", "min", "max"]
    arguments: tuple[Term, ...]

    def __str__(self) -> str:
        return f"{self.function}({', '.join(map(str, self.arguments))})"


@dataclass(frozen=True, slots=True)
class Aggregate:
    """count(φ), sum(x), mean(x), least(x), most(x): over the states of the episode so far, this one included."""

    function: Literal["count", "sum", "mean", "least", "most"]
    body: Any  # a state formula if it is counted, else a term; with no further aggregate in it
    place: SourceLocation | None = field(default=None, compare=False, repr=False)

    def __str__(self) -> str:
        return f"{self.function}({self.body})"


Term: TypeAlias = Number | Signal | Minus | Arith | Call | Aggregate


def _level(term: Term) -> int:
    """How tightly a term binds when printed."""
    match term:
        case Arith(operator):
            return 1 if operator in "+-" else 2
        case Minus():
            return 3
        case _:
            return 4


def _term(term: Term, level: int) -> str:
    return str(term) if _level(term) >= level else f"({term})"


# ---- formulas: what holds or does not -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Bool:
    """true or false"""

    value: bool

    def __str__(self) -> str:
        return "true" if self.value else "false"


@dataclass(frozen=True, slots=True)
class Label:
    """A Boolean signal written as a PRISM label, `"crashed"`; `"end"` is true in the last state of a path."""

    name: str
    place: SourceLocation | None = field(default=None, compare=False, repr=False)

    def __str__(self) -> str:
        return f'"{self.name}"'


@dataclass(frozen=True, slots=True)
class Compare:
    """left >= right, and so on"""

    operator: Literal["<", "<=", ">", ">=", "=", "!="]
    left: Term
    right: Term

    def __str__(self) -> str:
        return f"{self.left} {self.operator} {self.right}"


@dataclass(frozen=True, slots=True)
class Not:
    """!body"""

    body: Formula

    def __str__(self) -> str:
        return f"!{_plain(self.body, Not)}"


@dataclass(frozen=True, slots=True)
class And:
    """a & b & ..., two operands or more"""

    operands: tuple[Formula, ...]

    def __str__(self) -> str:
        return " & ".join(map(_operand, self.operands))


@dataclass(frozen=True, slots=True)
class Or:
    """a | b | ..., two operands or more"""

    operands: tuple[Formula, ...]

    def __str__(self) -> str:
        return " | ".join(map(_operand, self.operands))


@dataclass(frozen=True, slots=True)
class Implies:
    """left => right"""

    left: Formula
    right: Formula

    def __str__(self) -> str:
        return f"{_operand(self.left)} => {_operand(self.right)}"


@dataclass(frozen=True, slots=True)
class Iff:
    """left <=> right"""

    left: Formula
    right: Formula

    def __str__(self) -> str:
        return f"{_operand(self.left)} <=> {_operand(self.right)}"


@dataclass(frozen=True, slots=True)
class Bound:
    """The steps a temporal operator looks at, counted from where it stands: lower to upper, both included."""

    lower: int
    upper: int
    place: SourceLocation | None = field(default=None, compare=False, repr=False)

    def __str__(self) -> str:
        return f"[{self.lower},{self.upper}]" if self.lower else f"<={self.upper}"


@dataclass(frozen=True, slots=True)
class Next:
    """X body: in the next state"""

    body: Formula

    def __str__(self) -> str:
        return f"X {_plain(self.body, Not, *_PREFIXED)}"


@dataclass(frozen=True, slots=True)
class Finally:
    """F body: in some state"""

    body: Formula
    bound: Bound | None = None

    def __str__(self) -> str:
        return f"F{self.bound or ''} {_plain(self.body, Not, *_PREFIXED)}"


@dataclass(frozen=True, slots=True)
class Globally:
    """G body: in every state"""

    body: Formula
    bound: Bound | None = None

    def __str__(self) -> str:
        return f"G{self.bound or ''} {_plain(self.body, Not, *_PREFIXED)}"


@dataclass(frozen=True, slots=True)
class Until:
    """left U right: right in some state, and left in every state before it"""

    left: Formula
    right: Formula
    bound: Bound | None = None
    symbol: ClassVar[str] = "U"

    def __str__(self) -> str:
        return _binary(self)


@dataclass(frozen=True, slots=True)
class WeakUntil:
    """left W right: left U right, or left in every state"""

    left: Formula
    right: Formula
    bound: Bound | None = None
    symbol: ClassVar[str] = "W"

    def __str__(self) -> str:
        return _binary(self)


@dataclass(frozen=True, slots=True)
class Release:
    """left R right: right in every state up to and including the first in which left holds"""

    left: Formula
    right: Formula
    bound: Bound | None = None
    symbol: ClassVar[str] = "R"

    def __str__(self) -> str:
        return _binary(self)


Formula: TypeAlias = (
    Bool
    | Label
    | Signal
    | Compare
    | Not
    | And
    | Or
    | Implies
    | Iff
    | Next
    | Finally
    | Globally
    | Until
    | WeakUntil
    | Release
)
Node: TypeAlias = Term | Formula
_PREFIXED = (Next, Finally, Globally)
_TEMPORAL = (*_PREFIXED, Until, WeakUntil, Release)


def _plain(formula: Formula, *bare: type) -> str:
    """In parentheses unless it is an atom or one of the given kinds."""
    return str(formula) if isinstance(formula, (Bool, Label, Signal, *bare)) else f"({formula})"


def _operand(formula: Formula) -> str:
    # A temporal operator always gets its parentheses: as a bare operand it would swallow what follows.
    return _plain(formula, Compare, Not)


def _binary(node: Until | WeakUntil | Release) -> str:
    return f"{_operand(node.left)} {node.symbol}{node.bound or ''} {_operand(node.right)}"


def is_formula(node: object) -> TypeGuard[Formula]:
    """Can this node be read as a Boolean? (A signal can, and as a number too.)"""
    return isinstance(node, get_args(Formula))


def is_term(node: object) -> TypeGuard[Term]:
    """Can this node be read as a number? (A signal can, and as a Boolean too.)"""
    return isinstance(node, get_args(Term))


def parts(node: Node) -> tuple[Node, ...]:
    """The direct operands of a node."""
    match node:
        case Minus(body) | Not(body) | Next(body) | Finally(body) | Globally(body) | Aggregate(_, body):
            return (body,)
        case And(operands) | Or(operands):
            return operands
        case Call(_, arguments):
            return arguments
        case Number() | Signal() | Bool() | Label():
            return ()
        case _:
            return (node.left, node.right)


def walk(node: Node) -> Iterator[Node]:
    """The node and everything below it, in the order of the text."""
    yield node
    for part in parts(node):
        yield from walk(part)


def is_state_formula(formula: Formula) -> bool:
    """Does it speak about one state only, with no temporal operator in it?"""
    return not any(isinstance(node, _TEMPORAL) for node in walk(formula))


def aggregates(trees: Iterable[Node]) -> tuple[Aggregate, ...]:
    """What formulas and terms say about all states so far, each once."""
    return tuple({node: None for tree in trees for node in walk(tree) if isinstance(node, Aggregate)})


@dataclass(frozen=True, slots=True)
class SignalInfo:
    """What is known of a signal before anything runs."""

    size: int | None = None  # length of a vector; None for a single value
    boolean: bool | None = False  # None: neither type nor size are known before running


# ---- quantities: numbers about a whole episode, with states 0 to n and steps 1 to n -------------------------


@dataclass(frozen=True, slots=True)
class Total:
    """C, C<=k: added up over all steps, or over the first k"""

    steps: int | None = None
    place: SourceLocation | None = field(default=None, compare=False, repr=False)

    def __str__(self) -> str:
        return "C" if self.steps is None else f"C<={self.steps}"


@dataclass(frozen=True, slots=True)
class Instant:
    """I=k: in state k"""

    step: int
    place: SourceLocation | None = field(default=None, compare=False, repr=False)

    def __str__(self) -> str:
        return f"I={self.step}"


@dataclass(frozen=True, slots=True)
class Reaching:
    """F body: added up over the steps until a state formula first holds; over all of them if it never does"""

    body: Formula

    def __str__(self) -> str:
        return str(Finally(self.body))


@dataclass(frozen=True, slots=True)
class LongRun:
    """S: the average per step of a system that starts again whenever an episode ends"""

    share: bool = False  # written S>=p [ φ ], and then about φ that holds or does not

    def __str__(self) -> str:
        return "S"


Over: TypeAlias = Total | Instant | Reaching | LongRun


@dataclass(frozen=True, slots=True)
class Quantity:
    """What an episode makes of x: a term, or a state formula, which is 1 where it holds and 0 where it does not.

    A step has the value of x in the state that it leads to, as it is with `reward`.
    """

    body: Any  # a term or a state formula; a signal or label may be either
    over: Over

    @property
    def x(self) -> Any:
        """The body, where it is a name in quotes as the signal of that name; of a share always a formula."""
        is_signal = isinstance(self.body, Label) and self.body.name != "end"
        x = Signal(self.body.name, None, self.body.place) if is_signal else self.body
        return (
            Not(Not(x)) if self.over == LongRun(share=True) else x
        )  # a number other than 0 is true, and counts once

    def compared(self, bounds: str) -> str:
        """As it is written with these bounds, or with a question mark."""
        if self.over == LongRun(share=True):
            return f"S{bounds} [ {self.body} ]"
        return f"R{{{self.body}}}{bounds} [ {self.over} ]"


def roots(subject: Formula | Quantity) -> tuple[Node, ...]:
    """The trees that a formula or a quantity consists of."""
    match subject:
        case Quantity(body, Reaching(until)):
            return body, until
        case Quantity(body):
            return (body,)
        case formula:
            return (formula,)


# ---- requirements ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Goal:
    """What to optimise: the return, `Rmax=? [ C ]` or `Rmin=? [ C ]`."""

    maximize: bool = True
    name: str | None = None

    def __str__(self) -> str:
        return f"{_heading(self.name)}R{'max' if self.maximize else 'min'}=? [ C ]"


@dataclass(frozen=True, slots=True)
class Constraint:
    """The probability of `formula` lies between `lower` and `upper`, and one wants to be `confidence` sure of it."""

    formula: Formula
    comparison: Literal[">=", ">", "<=", "<", "in"]
    lower: float  # excluded if the comparison is ">"
    upper: float  # excluded if the comparison is "<"
    confidence: float = DEFAULT_CONFIDENCE
    name: str | None = None

    def __str__(self) -> str:
        bounds = _bounds(self.comparison, self.lower, self.upper)
        return f"{_heading(self.name)}P{bounds} [ {self.formula} ]{_tail(self.confidence)}"


@dataclass(frozen=True, slots=True)
class Expectation:
    """The expected value of `subject` lies between `lower` and `upper`; `confidence` is how sure one wants to be."""

    subject: Quantity
    comparison: Literal[">=", ">", "<=", "<", "in"]
    lower: float = -inf  # excluded if the comparison is ">"
    upper: float = inf  # excluded if the comparison is "<"
    confidence: float = DEFAULT_CONFIDENCE
    within: tuple[float, float] | None = None  # where the value of every episode lies; of a rate, each step's
    name: str | None = None

    def __str__(self) -> str:
        bounds = _bounds(self.comparison, self.lower, self.upper)
        return f"{_heading(self.name)}{self.subject.compared(bounds)}{_tail(self.confidence, self.within)}"


@dataclass(frozen=True, slots=True)
class Question:
    """What is the probability of a formula, or the expected value of a quantity?"""

    subject: Any  # Formula | Quantity
    best: Literal["max", "min"] | None = None  # of all controllers, instead of what a policy has
    confidence: float = DEFAULT_CONFIDENCE
    within: tuple[float, float] | None = None
    name: str | None = None

    def __str__(self) -> str:
        asked = f"{self.best or ''}=?"
        if isinstance(self.subject, Quantity):
            text = self.subject.compared(asked)
        else:
            text = f"P{asked} [ {self.subject} ]"
        return f"{_heading(self.name)}{text}{_tail(self.confidence, self.within)}"


def _bounds(comparison: str, lower: float, upper: float) -> str:
    if comparison == "in":
        return f" in [{Number(lower)},{Number(upper)}]"
    return f"{comparison}{Number(lower if '>' in comparison else upper)}"


def _tail(confidence: float, within: tuple[float, float] | None = None) -> str:
    span = "" if within is None else f" within [{Number(within[0])},{Number(within[1])}]"
    return f"{span} & C>={Number(confidence)}"


def _heading(name: str | None) -> str:
    return "" if name is None else f'"{name}": '


@dataclass(frozen=True, slots=True)
class ProbabilityBound:
    """One side of a constraint as learners and verifiers see it: `formula` holds with probability >= `p_req`."""

    formula: Formula
    p_req: float
    confidence: float
    constraint: int  # its index in Requirement.constraints
    negated: bool  # the constraint bounds the probability of a formula from above, and this is its negation


@dataclass(frozen=True, slots=True)
class Requirement:
    """A goal, the constraints under which it is pursued, and what else one would like to know."""

    goal: Goal = Goal()
    constraints: tuple[Constraint | Expectation, ...] = ()
    questions: tuple[Question, ...] = ()
    text: str = field(default="", compare=False, repr=False)  # as it was written

    def __str__(self) -> str:
        return ";\n".join(map(str, (self.goal, *self.constraints, *self.questions))) + ";"

    def _repr_html_(self) -> str:
        """What is asked, property by property, for notebooks."""
        named = [("goal", str(self.goal))]
        named += [("constraint", str(each)) for each in self.constraints]
        named += [("question", str(each)) for each in self.questions]
        rows = "".join(
            f"<tr><th>{kind}</th><td><code>{escape(text)}</code></td></tr>" for kind, text in named
        )
        return f"<table>{rows}</table>"

    @property
    def probabilities(self) -> tuple[Constraint, ...]:
        """The constraints that bound the probability of a formula."""
        return tuple(each for each in self.constraints if isinstance(each, Constraint))

    @property
    def measured(self) -> tuple[Expectation | Question, ...]:
        """What every episode has a value of: expectations, then questions about the policy."""
        expectations = (each for each in self.constraints if isinstance(each, Expectation))
        return (*expectations, *(each for each in self.questions if each.best is None))

    @property
    def demands(self) -> tuple[ProbabilityBound, ...]:
        """Bounds on probabilities as one-sided demands: P<=p [φ] becomes P>=1-p [!φ], an interval becomes both sides.

        A side that asks for nothing (lower 0, upper 1) is dropped, but each constraint keeps at least one demand.
        Learning and verification treat `>` as `>=`: no number of episodes tells them apart.
        """
        bounded = [(i, c) for i, c in enumerate(self.constraints) if isinstance(c, Constraint)]
        return tuple(demand for i, c in bounded for demand in _sides(i, c))


def _sides(index: int, constraint: Constraint) -> Iterator[ProbabilityBound]:
    formula, confidence = constraint.formula, constraint.confidence
    if constraint.comparison in ("<=", "<"):
        bounded_below, bounded_above = False, True
    else:
        bounded_above = constraint.upper < 1.0
        bounded_below = constraint.lower > 0.0 or not bounded_above
    if bounded_below:
        yield ProbabilityBound(formula, constraint.lower, confidence, index, negated=False)
    if bounded_above:
        p_req = round(1.0 - constraint.upper, 12)  # 1 - 0.9 is 0.1, not 0.09999999999999998
        yield ProbabilityBound(Not(formula), p_req, confidence, index, negated=True)
