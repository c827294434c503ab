"""The syntax tree of a requirement: frozen, hashable, and printed as text that parses back to an equal tree."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from html import escape
from math import inf
from typing import Any, Literal, TypeAlias, TypeGuard, get_args

from psyco._src.core.errors import SourceLocation

DEFAULT_CONFIDENCE = 0.95  # of a constraint without `& C>=c`
UNBOUNDED_RANGE = (-inf, inf)  # the range of a value about which nothing is known

# ---- terms: numeric expressions ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Number:
    """A literal, never negative: -3 is `Minus(Number(3))`."""

    value: float

    def __str__(self) -> str:
        return repr(self.value).removesuffix(".0")


@dataclass(frozen=True, slots=True)
class Signal:
    """A named quantity of a state, `distance` or `obs[2]`: a term, or a formula where it is Boolean."""

    name: str
    index: int | None = None
    location: SourceLocation | None = field(default=None, compare=False, repr=False)

    def __str__(self) -> str:
        return self.name if self.index is None else f"{self.name}[{self.index}]"


@dataclass(frozen=True, slots=True)
class Minus:
    """-body."""

    body: Term

    def __str__(self) -> str:
        return f"-{_term(self.body, 3)}"


@dataclass(frozen=True, slots=True)
class Arith:
    """A binary arithmetic operation: left + right and so on."""

    operator: Literal["+", "-", "*", "/"]
    left: Term
    right: Term

    def __str__(self) -> str:
        level = _precedence(self)  # left associative: the right operand has to bind tighter
        return f"{_term(self.left, level)} {self.operator} {_term(self.right, level + 1)}"


@dataclass(frozen=True, slots=True)
class Call:
    """abs(x), min(x, y, ...), max(x, y, ...)."""

    function: Literal["abs", "min", "max"]
    arguments: tuple[Term, ...]

    def __str__(self) -> str:
        return f"{self.function}({', '.join(map(str, self.arguments))})"


@dataclass(frozen=True, slots=True)
class Aggregate:
    """count(φ), sum(x), mean(x), least(x), most(x) over the states of the episode up to and including this one."""

    function: Literal["count", "sum", "mean", "least", "most"]
    body: Any  # a state formula for `count`, else a term; contains no other aggregate
    location: SourceLocation | None = field(default=None, compare=False, repr=False)

    def __str__(self) -> str:
        return f"{self.function}({self.body})"


Term: TypeAlias = Number | Signal | Minus | Arith | Call | Aggregate


def _precedence(term: Term) -> int:
    match term:
        case Arith(operator):
            return 1 if operator in "+-" else 2
        case Minus():
            return 3
        case _:
            return 4


def _term(term: Term, level: int) -> str:
    return str(term) if _precedence(term) >= level else f"({term})"


# ---- formulas: Boolean expressions -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Bool:
    """The literal true or false."""

    value: bool

    def __str__(self) -> str:
        return "true" if self.value else "false"


@dataclass(frozen=True, slots=True)
class Label:
    """A Boolean signal written as a PRISM label, `"crashed"`; `"end"` is true in the last state of a path."""

    name: str
    location: SourceLocation | None = field(default=None, compare=False, repr=False)

    def __str__(self) -> str:
        return f'"{self.name}"'


END = Label("end")


@dataclass(frozen=True, slots=True)
class Compare:
    """A comparison of two terms: left >= right and so on."""

    operator: Literal["<", "<=", ">", ">=", "=", "!="]
    left: Term
    right: Term

    def __str__(self) -> str:
        return f"{self.left} {self.operator} {self.right}"


@dataclass(frozen=True, slots=True)
class Not:
    """!body."""

    body: Formula

    def __str__(self) -> str:
        return f"!{_unary_operand(self.body, Not)}"


@dataclass(frozen=True, slots=True)
class Connective:
    """a & b & ..., a | b | ..., with at least two operands; a => b, a <=> b with exactly two."""

    operator: Literal["&", "|", "=>", "<=>"]
    operands: tuple[Formula, ...]

    def __str__(self) -> str:
        return f" {self.operator} ".join(map(_operand, self.operands))


@dataclass(frozen=True, slots=True)
class Bound:
    """The window of a temporal operator: `lower` to `upper` steps ahead, both included."""

    lower: int
    upper: int
    location: SourceLocation | None = field(default=None, compare=False, repr=False)

    def __str__(self) -> str:
        return f"[{self.lower},{self.upper}]" if self.lower else f"<={self.upper}"


@dataclass(frozen=True, slots=True)
class Temporal:
    """X φ, F φ, G φ, φ U ψ, φ W ψ, φ R ψ; all but X may have a bound.

    φ W ψ is φ U ψ or G φ; φ R ψ wants ψ in every state up to and including the first in which φ holds.
    """

    operator: Literal["X", "F", "G", "U", "W", "R"]
    operands: tuple[Formula, ...]
    bound: Bound | None = None

    def __str__(self) -> str:
        operator = f"{self.operator}{self.bound or ''}"
        if len(self.operands) == 2:
            return f"{_operand(self.operands[0])} {operator} {_operand(self.operands[1])}"
        (body,) = self.operands
        is_prefix = isinstance(body, Temporal) and len(body.operands) == 1
        return f"{operator} {body if is_prefix else _unary_operand(body, Not)}"


@dataclass(frozen=True, slots=True)
class Quantified:
    """each(φ), any(φ): φ holds for every agent, or for some agent, of the group that φ names, as in `agent.distance`.

    `logic/quantifiers.py` writes it out for the agents of a domain, before anything evaluates the formula.
    """

    quantifier: Literal["each", "any"]
    body: Formula
    location: SourceLocation | None = field(default=None, compare=False, repr=False)

    def __str__(self) -> str:
        return f"{self.quantifier}({self.body})"


Formula: TypeAlias = Bool | Label | Signal | Compare | Not | Connective | Temporal | Quantified
Node: TypeAlias = Term | Formula


def _unary_operand(formula: Formula, *unparenthesized: type) -> str:
    is_plain = isinstance(formula, (Bool, Label, Signal, Quantified, *unparenthesized))
    return str(formula) if is_plain else f"({formula})"


def _operand(formula: Formula) -> str:
    # A temporal operator always gets parentheses: without them it would extend over the following operands.
    return _unary_operand(formula, Compare, Not)


def is_formula(node: object) -> TypeGuard[Formula]:
    """Return whether a node can be read as a Boolean; a signal can, and as a number too."""
    return isinstance(node, get_args(Formula))


def is_term(node: object) -> TypeGuard[Term]:
    """Return whether a node can be read as a number; a signal can, and as a Boolean too."""
    return isinstance(node, get_args(Term))


def children(node: Node) -> tuple[Node, ...]:
    """Return the direct operands of a node, in the order of the text."""
    match node:
        case Minus(body) | Not(body) | Aggregate(_, body) | Quantified(_, body):
            return (body,)
        case Connective(_, operands) | Temporal(_, operands) | Call(_, operands):
            return operands
        case Arith(_, left, right) | Compare(_, left, right):
            return left, right
        case _:
            return ()


def walk(node: Node) -> Iterator[Node]:
    """Yield the node and all nodes below it, in the order of the text."""
    yield node
    for child in children(node):
        yield from walk(child)


def is_state_formula(formula: Formula) -> bool:
    """Return whether a formula is about a single state: it has no temporal operator."""
    return not any(isinstance(node, Temporal) for node in walk(formula))


def without_implications(formula: Formula) -> Formula:
    """Rewrite => and <=> at the top of a formula with & | !, for tools that lack them."""
    match formula:
        case Connective("=>", (left, right)):
            return Connective("|", (Not(left), right))
        case Connective("<=>", (left, right)):
            neither = Connective("&", (Not(left), Not(right)))
            return Connective("|", (Connective("&", (left, right)), neither))
        case _:
            return formula


def aggregates(trees: Iterable[Node]) -> tuple[Aggregate, ...]:
    """Return the distinct aggregates in formulas and terms."""
    return tuple({node: None for tree in trees for node in walk(tree) if isinstance(node, Aggregate)})


@dataclass(frozen=True, slots=True)
class SignalInfo:
    """The type of a signal, as far as it is known before anything runs."""

    size: int | None = None  # length of a vector; None for a single value
    boolean: bool | None = False  # None: neither type nor size are known before running
    whole: bool = False  # known to have whole numbers only


# ---- quantities: numbers about a whole episode, with states 0 to n and steps 1 to n -------------------------


@dataclass(frozen=True, slots=True)
class Total:
    """C or C<=k: the sum over all steps, or over the first k."""

    steps: int | None = None
    location: SourceLocation | None = field(default=None, compare=False, repr=False)

    def __str__(self) -> str:
        return "C" if self.steps is None else f"C<={self.steps}"


@dataclass(frozen=True, slots=True)
class Instant:
    """I=k: the value in state k."""

    step: int
    location: SourceLocation | None = field(default=None, compare=False, repr=False)

    def __str__(self) -> str:
        return f"I={self.step}"


@dataclass(frozen=True, slots=True)
class Reaching:
    """F body: the sum over the steps until a state formula first holds, or over all steps if it never does."""

    body: Formula

    def __str__(self) -> str:
        return str(Temporal("F", (self.body,)))


@dataclass(frozen=True, slots=True)
class LongRun:
    """S: the average per step of a system that restarts whenever an episode ends."""

    share: bool = False  # written S>=p [ φ ]: the share of steps in which φ holds

    def __str__(self) -> str:
        return "S"


Over: TypeAlias = Total | Instant | Reaching | LongRun


@dataclass(frozen=True, slots=True)
class Quantity:
    """R{body} [ over ]: a number per episode, from a term or from a state formula, which counts as 1 or 0.

    Like `reward`, a step has the value of the body in the state that it leads to. R is the mean over all episodes,
    CVaR{body}(a) over the worst of them, a fraction of 1 - a: the largest values, or the smallest under a lower bound.
    """

    body: Any  # a term or a state formula; a signal or label may be either
    over: Over
    cvar: float | None = None  # the level a of CVaR; None: R

    @property
    def x(self) -> Any:
        """The body to evaluate: a label becomes the signal of that name; the body of a share is made a formula."""
        is_signal = isinstance(self.body, Label) and self.body != END
        x = Signal(self.body.name, None, self.body.location) if is_signal else self.body
        # A nonzero number is true, and counts once.
        return Not(Not(x)) if self.over == LongRun(share=True) else x

    def text(self, bounds: str) -> str:
        """Return the property with these bounds, or with a question mark in their place."""
        if self.over == LongRun(share=True):
            return f"S{bounds} [ {self.body} ]"
        word, level = ("R", "") if self.cvar is None else ("CVaR", f"({Number(self.cvar)})")
        return f"{word}{{{self.body}}}{level}{bounds} [ {self.over} ]"


def roots(subject: Formula | Quantity) -> tuple[Node, ...]:
    """Return the trees that a formula or a quantity consists of."""
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
    """The objective: maximise or minimise the return, `Rmax=? [ C ]` or `Rmin=? [ C ]`."""

    maximize: bool = True
    name: str | None = None

    def __str__(self) -> str:
        return f"{_heading(self.name)}R{'max' if self.maximize else 'min'}=? [ C ]"


@dataclass(frozen=True, slots=True)
class Group:
    """A group of agents in `for each agent: P>=p [ φ ]`, one property for each of them."""

    name: str
    location: SourceLocation | None = field(default=None, compare=False, repr=False)

    def __str__(self) -> str:
        return f"for each {self.name}: "


@dataclass(frozen=True, slots=True)
class Constraint:
    """A bound on a probability: `lower` <= P(`formula`) <= `upper`, to be shown with `confidence`."""

    formula: Formula
    comparison: Literal[">=", ">", "<=", "<", "in"]
    lower: float  # excluded if the comparison is ">"
    upper: float  # excluded if the comparison is "<"
    confidence: float = DEFAULT_CONFIDENCE
    name: str | None = None
    environments: float | None = None  # share of the environments of a family in which the bound must hold
    for_each: Group | None = None  # whose agents have a constraint each

    @property
    def estimand(self) -> str:
        """The bounded quantity, in words."""
        return "probability"

    def __str__(self) -> str:
        bounds = _bounds(self.comparison, self.lower, self.upper)
        percentage = None if self.environments is None else Number(round(100 * self.environments, 10))
        share = "" if percentage is None else f" in {percentage}% of environments"
        return f"{_heading(self.name, self.for_each)}P{bounds}{share} [ {self.formula} ]{_tail(self.confidence)}"


@dataclass(frozen=True, slots=True)
class Expectation:
    """A bound on an expected value or a CVaR: `lower` <= E(`subject`) <= `upper`, to be shown with `confidence`."""

    subject: Quantity
    comparison: Literal[">=", ">", "<=", "<", "in"]
    lower: float = -inf  # excluded if the comparison is ">"
    upper: float = inf  # excluded if the comparison is "<"
    confidence: float = DEFAULT_CONFIDENCE
    within: tuple[float, float] | None = None  # range of every episode's value; for a rate, of every step's
    name: str | None = None
    for_each: Group | None = None  # whose agents have a constraint each

    @property
    def estimand(self) -> str:
        """The bounded quantity, in words."""
        return "expected value" if self.subject.cvar is None else "CVaR"

    def __str__(self) -> str:
        bounds = _bounds(self.comparison, self.lower, self.upper)
        heading = _heading(self.name, self.for_each)
        return f"{heading}{self.subject.text(bounds)}{_tail(self.confidence, self.within)}"


@dataclass(frozen=True, slots=True)
class Question:
    """A query for the probability of a formula, or for the expected value or the CVaR of a quantity."""

    subject: Any  # Formula | Quantity
    best: Literal["max", "min"] | None = None  # over all controllers; None: the value of the given policy
    confidence: float = DEFAULT_CONFIDENCE
    within: tuple[float, float] | None = None
    name: str | None = None
    for_each: Group | None = None  # about whose agents there is a question each

    def __str__(self) -> str:
        query = f"{self.best or ''}=?"
        is_quantity = isinstance(self.subject, Quantity)
        text = self.subject.text(query) if is_quantity else f"P{query} [ {self.subject} ]"
        return f"{_heading(self.name, self.for_each)}{text}{_tail(self.confidence, self.within)}"


def _bounds(comparison: str, lower: float, upper: float) -> str:
    if comparison == "in":
        return f" in [{Number(lower)},{Number(upper)}]"
    return f"{comparison}{Number(lower if '>' in comparison else upper)}"


def _tail(confidence: float, within: tuple[float, float] | None = None) -> str:
    interval = "" if within is None else f" within [{Number(within[0])},{Number(within[1])}]"
    return f"{interval} & C>={Number(confidence)}"


def _heading(name: str | None, for_each: Group | None = None) -> str:
    heading = "" if name is None else f'"{name}": '
    return f"{heading}{for_each or ''}"


@dataclass(frozen=True, slots=True)
class ProbabilityBound:
    """One side of a constraint, as learners and verifiers use it: `formula` holds with probability >= `p_req`."""

    formula: Formula
    p_req: float
    confidence: float
    constraint: int  # its index in Requirement.constraints
    negated: bool  # `formula` is the negation of the constraint's, whose probability is bounded from above


@dataclass(frozen=True, slots=True)
class Requirement:
    """A goal, the constraints that must hold, and questions to answer."""

    goal: Goal = Goal()
    constraints: tuple[Constraint | Expectation, ...] = ()
    questions: tuple[Question, ...] = ()
    text: str = field(default="", compare=False, repr=False)  # the source

    def __str__(self) -> str:
        return ";\n".join(map(str, (self.goal, *self.constraints, *self.questions))) + ";"

    def _repr_html_(self) -> str:
        """Return a table with a row per property, for notebooks."""
        kinds = ["goal", *["constraint"] * len(self.constraints), *["question"] * len(self.questions)]
        rows = zip(kinds, (self.goal, *self.constraints, *self.questions), strict=True)
        code = "<code style='white-space:pre-wrap'>"  # a long one wraps
        html = (f"<tr><th>{kind}</th><td>{code}{escape(str(item))}</code></td></tr>" for kind, item in rows)
        return f"<table>{''.join(html)}</table>"

    @property
    def probability_constraints(self) -> tuple[Constraint, ...]:
        """The constraints that bound the probability of a formula."""
        return tuple(c for c in self.constraints if isinstance(c, Constraint))

    @property
    def measured(self) -> tuple[Expectation | Question, ...]:
        """All properties with a value per episode: expectations, then questions about the policy."""
        expectations = (c for c in self.constraints if isinstance(c, Expectation))
        return (*expectations, *(question for question in self.questions if question.best is None))

    @property
    def only_optima(self) -> bool:
        """Whether it only asks for the best values of all controllers."""
        return bool(self.questions) and not self.constraints and all(question.best for question in self.questions)

    @property
    def bounds_cvar(self) -> bool:
        """Whether a constraint bounds a CVaR."""
        return any(isinstance(c, Expectation) and c.subject.cvar is not None for c in self.constraints)

    @property
    def probability_bounds(self) -> tuple[ProbabilityBound, ...]:
        """The constraints on probabilities as one-sided bounds: P<=p [φ] is P>=1-p [!φ], an interval both sides.

        A trivial side (lower 0, upper 1) is dropped, but each constraint keeps at least one bound.
        Learning and verification treat `>` as `>=`: no number of episodes can distinguish them.
        """
        indexed = [(i, c) for i, c in enumerate(self.constraints) if isinstance(c, Constraint)]
        return tuple(bound for i, c in indexed for bound in _sides(i, c))


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
