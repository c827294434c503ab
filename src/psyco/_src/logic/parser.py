"""Text -> Requirement. Whatever is wrong with the text is said with its line, its column and a remedy."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple, cast

from lark import Lark, Token, Transformer_NonRecursive, UnexpectedToken, v_args
from lark.exceptions import UnexpectedInput, VisitError

from psyco._src.core.errors import RequirementError, SourceLocation
from psyco._src.logic.ast import (
    DEFAULT_CONFIDENCE,
    Aggregate,
    And,
    Arith,
    Bool,
    Bound,
    Call,
    Compare,
    Constraint,
    Expectation,
    Finally,
    Formula,
    Globally,
    Goal,
    Iff,
    Implies,
    Instant,
    Label,
    LongRun,
    Minus,
    Next,
    Node,
    Not,
    Number,
    Or,
    Over,
    Quantity,
    Question,
    Reaching,
    Release,
    Requirement,
    Signal,
    Term,
    Total,
    Until,
    WeakUntil,
    is_formula,
    is_state_formula,
    is_term,
    walk,
)

# Far beyond any requirement that somebody means: safe for recursive functions, and compiled in below ten seconds, of
# which XLA takes a tenth over each operator that looks along a path.
MAX_LENGTH = 100_000  # characters
MAX_DEPTH = 100  # operators inside each other
MAX_OPERATORS = 1000
MAX_TEMPORAL = 60  # F, G, U, W, R
MAX_DIGITS = 9  # of a bound or an index

SPLIT = "split the requirement into several"
_ASCII = {
    "≥": ">=",
    "≤": "<=",
    "≠": "!=",
    "□": "G",
    "◇": "F",
    "◊": "F",
    "○": "X",
    "◯": "X",
    "−": "-",
    "·": "*",
}
_RESERVED = {"A", "E"}  # PRISM's other operators; C F G I P R S U W X are words of the grammar
_LETTERS = "PRISM reserves the letters A C E F G I P R S U W X"
_BINARY: dict[str, type[Until | WeakUntil | Release]] = {"U": Until, "W": WeakUntil, "R": Release}


def parse(text: str) -> Requirement:
    """Read a requirement: a goal (the default is to maximise the return), any number of constraints and of questions.

    Raises RequirementError, which shows the offending place, for anything that is not one.
    """
    if not isinstance(text, str):
        raise RequirementError(f"a requirement is text, got {text!r}")
    return cast(Requirement, _read(text, "requirement"))


def parse_formula(text: str) -> Formula:
    """Read a path formula alone, such as `G (distance >= 0.1)`; raises RequirementError like `parse`."""
    return cast(Formula, _read(text, "formula"))


def _read(text: str, start: str) -> Requirement | Formula:
    if len(text) > MAX_LENGTH:
        raise RequirementError(
            f"a requirement of {len(text):,} characters; at most {MAX_LENGTH:,} are read", None, SPLIT
        )
    try:
        return cast("Requirement | Formula", _Builder(text).transform(_lark().parse(text, start=start)))
    except UnexpectedInput as error:
        raise _syntax_error(text, start, error) from None
    except VisitError as error:
        raise error.orig_exc from None


@cache
def _lark() -> Lark:
    return Lark.open(
        "grammar.lark",
        rel_to=__file__,
        parser="lalr",
        lexer="basic",  # the words of the language are reserved everywhere
        start=["requirement", "formula"],
        maybe_placeholders=True,
    )


# ---- the tree, bottom up -----------------------------------------------------------------------------------


class _Piece(NamedTuple):
    """A part of a formula under construction, with what its errors need."""

    node: Node
    place: SourceLocation
    depth: int = 1


class _Property(NamedTuple):
    """A goal, constraint or question, where it starts, and where its name stands if it has one."""

    statement: Any  # Goal | Constraint | Expectation | Question
    place: SourceLocation
    name_place: SourceLocation | None = None


class _Confidence(NamedTuple):
    value: float
    place: SourceLocation


class _Range(NamedTuple):
    value: tuple[float, float]
    place: SourceLocation


class _Tail(NamedTuple):
    """What may follow a property."""

    confidence: float
    within: tuple[float, float] | None
    place: SourceLocation | None  # of the range, or else of the confidence, if there is one


class _Real(NamedTuple):
    """A number that is not part of a formula: a probability, a step, an index."""

    text: str
    place: SourceLocation

    def probability(self, what: str) -> float:
        value = float(self.text)
        if not 0.0 <= value <= 1.0:
            raise RequirementError(
                f"{what} {self.text} is not between 0 and 1", self.place, "write 95% as 0.95"
            )
        return value

    def number(self) -> float:
        value = float(self.text)
        if not math.isfinite(value):
            raise RequirementError(f"the number {self.text} is too large", self.place)
        return value

    def natural(self, what: str) -> int:
        if not self.text.isdecimal():
            raise RequirementError(
                f"{what} {self.text} is not a whole number of at least 0",
                self.place,
                "steps and positions are counted 0, 1, 2, ...",
            )
        if len(self.text) > MAX_DIGITS:
            raise RequirementError(f"{what} is too large", self.place, f"{MAX_DIGITS} digits are enough")
        return int(self.text)


class _Bounds(NamedTuple):
    symbol: str
    ends: tuple[_Real, ...]  # one, or both of an interval
    place: SourceLocation


@v_args(inline=True)
class _Builder(Transformer_NonRecursive[Token, Any]):
    """One method per rule of grammar.lark; non-recursive, so that no text is too deep for it."""

    def __init__(self, text: str) -> None:
        super().__init__(visit_tokens=False)
        self.text, self.lines = text, text.split("\n")
        self.operators = self.temporal = 0  # so far

    def place(self, token: Token) -> SourceLocation:
        line = token.line or 1
        return SourceLocation(line, token.column or 1, self.lines[line - 1])  # all places of a line share it

    # properties

    def requirement(self, *properties: _Property) -> Requirement:
        names: set[str] = set()
        for each in properties:
            if each.statement.name in names:
                raise RequirementError(
                    f'the name "{each.statement.name}" is given twice',
                    each.name_place,
                    "give every property its own name",
                )
            names |= {each.statement.name} - {None}
        goals = [each for each in properties if isinstance(each.statement, Goal)]
        if len(goals) > 1:
            raise RequirementError(
                "a second goal", goals[1].place, "a requirement has one goal; make the other a constraint"
            )
        statements = [each.statement for each in properties]
        return Requirement(
            goals[0].statement if goals else Goal(),
            tuple(each for each in statements if isinstance(each, Constraint | Expectation)),
            tuple(each for each in statements if isinstance(each, Question)),
            text=self.text,
        )

    def property(self, name: Token | None, body: _Property | _Confidence) -> _Property:
        if isinstance(body, _Confidence):
            raise RequirementError(
                "a confidence without a probability", body.place, "write P>=p [ ... ] & C>=c in one property"
            )
        if name is None:
            return body
        return _Property(replace(body.statement, name=name[1:-1]), body.place, self.place(name))

    def constraint(self, word: Token, bounds: _Bounds, path: _Piece, tail: _Tail) -> _Property:
        self.count(1, self.place(word))
        formula, between = self.boolean("P", path), self.bounds("P", bounds, 0.0, 1.0)
        return _Property(Constraint(formula, *between, self.of_probability(tail)), self.place(word))

    def expectation(
        self, word: Token, reward: _Piece | None, bounds: _Bounds, over: Over, tail: _Tail
    ) -> _Property:
        between = self.bounds("R", bounds, -math.inf, math.inf)
        stated = Expectation(self.quantity(word, reward, over), *between, tail.confidence, tail.within)
        return _Property(stated, self.place(word))

    def share(self, word: Token, bounds: _Bounds, path: _Piece, tail: _Tail) -> _Property:
        between = self.bounds("S", bounds, 0.0, 1.0)
        stated = Expectation(self.time_in(word, path), *between, self.of_probability(tail))
        return _Property(stated, self.place(word))

    def asked_path(self, word: Token, path: _Piece, tail: _Tail) -> _Property:
        self.count(1, self.place(word))
        subject = self.boolean("P", path) if word[0] == "P" else self.time_in(word, path)
        return _Property(Question(subject, _best(word), self.of_probability(tail)), self.place(word))

    def asked_return(self, word: Token, over: Over, tail: _Tail) -> _Property:
        best = _best(word)
        if best is None or over != Total():
            return self.asked_reward(word, None, word, over, tail)
        if tail.place is not None:
            raise RequirementError(
                "a goal has neither a confidence nor a range",
                tail.place,
                f"ask what can be reached with R{{reward}}{best}=? [ C ]",
            )
        return _Property(Goal(best == "max"), self.place(word))

    def asked_reward(
        self, word: Token, reward: _Piece | None, asked: Token, over: Over, tail: _Tail
    ) -> _Property:
        subject = self.quantity(word, reward, over)
        return _Property(Question(subject, _best(asked), tail.confidence, tail.within), self.place(word))

    def threshold(self, comparison: Token, end: _Real) -> _Bounds:
        return _Bounds(_ASCII.get(comparison, str(comparison)), (end,), self.place(comparison))

    def interval(self, word: Token, lower: _Real, upper: _Real) -> _Bounds:
        return _Bounds("in", (lower, upper), self.place(word))

    def bounds(self, word: str, given: _Bounds, least: float, most: float) -> tuple[Any, float, float]:
        """How a value between `least` and `most` is compared, and what it may be."""
        if given.symbol in ("=", "!="):
            raise RequirementError(
                f"{word} cannot be compared by {given.symbol}",
                given.place,
                f"write {word}>=p, {word}>p, {word}<=p, {word}<p or {word} in [a,b]",
            )
        is_probability = (least, most) == (0.0, 1.0)
        values = [e.probability("the probability") if is_probability else e.number() for e in given.ends]
        if given.symbol == "in":
            if values[0] > values[1]:
                raise _empty(*given.ends)
            return "in", values[0], values[1]
        if (given.symbol, values[0]) in ((">", most), ("<", least)):
            text = f"{given.symbol} {given.ends[0].text}"
            raise RequirementError(
                f"no probability is {text}", given.place, f"write {word}{given.symbol}={given.ends[0].text}"
            )
        return (given.symbol, values[0], most) if ">" in given.symbol else (given.symbol, least, values[0])

    def tail(self, *parts: _Confidence | _Range) -> _Tail:
        confidences = [each for each in parts if isinstance(each, _Confidence)]
        ranges = [each for each in parts if isinstance(each, _Range)]
        if len(confidences) > 1 or len(ranges) > 1:
            raise RequirementError(
                "a second confidence or range", parts[-1].place, "give one of each at most"
            )
        return _Tail(
            confidences[0].value if confidences else DEFAULT_CONFIDENCE,
            ranges[0].value if ranges else None,
            (ranges or parts)[0].place if parts else None,
        )

    def of_probability(self, tail: _Tail) -> float:
        """The confidence that a probability is bounded with."""
        if tail.within is not None:
            raise RequirementError(
                "a range for a probability", tail.place, "leave it out: probabilities lie within [0,1] anyway"
            )
        return tail.confidence

    def within(self, word: Token, lower: _Real, upper: _Real) -> _Range:
        if lower.number() >= upper.number():
            raise _empty(lower, upper)
        return _Range((lower.number(), upper.number()), self.place(word))

    # quantities

    def quantity(self, word: Token, reward: _Piece | None, over: Over) -> Quantity:
        self.count(1, self.place(word))
        return Quantity(Signal("reward", None, self.place(word)) if reward is None else reward.node, over)

    def time_in(self, word: Token, path: _Piece) -> Quantity:
        self.count(1, self.place(word))
        self.one_state("S", path, "S is about the long run already; P>=p [ ... ] is about paths")
        return Quantity(self.boolean("S", path), LongRun(share=True))

    def reward(self, body: _Piece) -> _Piece:
        if isinstance(body.node, Number):
            raise RequirementError(
                f"R{{{body.node}}} is the same at every step",
                body.place,
                "PRISM numbers the reward structures of a model; here name a signal, or write R{true} to count steps",
            )
        self.one_state("R", body, "a state formula is worth 1 where it holds; P>=p [ ... ] is about paths")
        return body

    def total(self, _: Token, comparison: Token | None, steps: _Real | None) -> Total:
        if comparison is None or steps is None:
            return Total()
        if _ASCII.get(comparison, comparison) != "<=":
            raise RequirementError(
                f"C cannot be bounded by {comparison}",
                self.place(comparison),
                "write C<=k for the first k steps, or C for all of them",
            )
        return Total(steps.natural("the bound"), self.place(comparison))

    def instant(self, word: Token, comparison: Token, step: _Real) -> Instant:
        if comparison != "=":
            raise RequirementError(
                f"I cannot be compared by {comparison}", self.place(comparison), "write I=k for state k"
            )
        return Instant(step.natural("the step"), self.place(word))

    def long_run(self, _: Token) -> LongRun:
        return LongRun()

    def reaching(self, path: _Piece) -> Reaching:
        match path.node:
            case Finally(body, None) if is_state_formula(body):
                return Reaching(body)
        raise RequirementError(
            f"R cannot be taken over {_short(path)}",
            path.place,
            "rewards are added up over [ C ] or [ C<=k ], or until a state is reached, [ F φ ] with no temporal "
            "operator in φ; besides there are [ I=k ] and [ S ]",
        )

    def confidence(self, word: Token, comparison: Token, c: _Real) -> _Confidence:
        value = c.probability("the confidence")
        if _ASCII.get(comparison, comparison) != ">=":
            raise RequirementError(
                f"a confidence cannot be compared by {comparison}",
                self.place(comparison),
                "write C>=c: being surer than asked is never wrong",
            )
        return _Confidence(value, self.place(word))

    # formulas

    def formula(self, path: _Piece) -> Formula:
        return self.boolean("a path formula", path)

    def binary(self, left: _Piece, word: Token, bound: Bound | None, right: _Piece) -> _Piece:
        a, b = self.boolean(word, left), self.boolean(word, right)
        node: Formula = _BINARY[str(word)](a, b, bound)
        return self.piece(node, left.place, left, right)

    def prefix(self, word: Token, bound: Bound | None, body: _Piece) -> _Piece:
        symbol, operand = _ASCII.get(word, str(word)), self.boolean(word, body)
        node: Formula
        if symbol == "X":
            if bound is not None and not bound.lower <= 1 <= bound.upper:
                raise RequirementError(
                    f"X looks one step ahead, which {bound} leaves out",
                    bound.place,
                    f"write F{bound} instead",
                )
            node = Next(operand)
        else:
            node = Finally(operand, bound) if symbol == "F" else Globally(operand, bound)
        return self.piece(node, self.place(word), body)

    def connective(self, left: _Piece, word: Token, right: _Piece) -> _Piece:
        a, b = self.boolean(word, left), self.boolean(word, right)
        node: Formula = Implies(a, b) if word.type == "IMPLIES" else Iff(a, b)
        return self.piece(node, left.place, left, right)

    def disjunction(self, *operands: _Piece) -> _Piece:
        return self.piece(
            Or(tuple(self.boolean("|", each) for each in operands)), operands[0].place, *operands
        )

    def conjunction(self, *operands: _Piece) -> _Piece:
        return self.piece(
            And(tuple(self.boolean("&", each) for each in operands)), operands[0].place, *operands
        )

    def negated(self, word: Token, body: _Piece) -> _Piece:
        return self.piece(Not(self.boolean(word, body)), self.place(word), body)

    def compare(self, left: _Piece, word: Token, right: _Piece) -> _Piece:
        symbol: Any = _ASCII.get(word, str(word))
        node: Formula
        if symbol in ("=", "!=") and not (is_term(left.node) and is_term(right.node)):  # between Booleans
            node = Iff(self.boolean(word, left), self.boolean(word, right))
            node = node if symbol == "=" else Not(node)
        else:
            node = Compare(symbol, self.number_in(word, left), self.number_in(word, right))
        return self.piece(node, left.place, left, right)

    # terms

    def arith(self, left: _Piece, word: Token, right: _Piece) -> _Piece:
        operator: Any = _ASCII.get(word, str(word))
        node = Arith(operator, self.number_in(word, left), self.number_in(word, right))
        return self.piece(node, left.place, left, right)

    def minus(self, word: Token, body: _Piece) -> _Piece:
        return self.piece(Minus(self.number_in(word, body)), self.place(word), body)

    def call(self, word: Token, *arguments: _Piece) -> _Piece:
        if (len(arguments) == 1) != (word == "abs"):
            wanted = "one number" if word == "abs" else "two numbers or more"
            raise RequirementError(f"{word} takes {wanted}, not {len(arguments)}", self.place(word))
        function: Any = str(word)
        node = Call(function, tuple(self.number_in(word, each) for each in arguments))
        return self.piece(node, self.place(word), *arguments)

    def aggregate(self, word: Token, body: _Piece, *more: _Piece) -> _Piece:
        if more:
            raise RequirementError(f"{word} takes one argument, not {1 + len(more)}", self.place(word))
        if inner := next((node for node in walk(body.node) if isinstance(node, Aggregate)), None):
            raise RequirementError(
                f"{inner.function} inside {word}: an aggregate cannot stand inside another one",
                inner.place,
                "compare or add up the two side by side",
            )
        self.one_state(word, body, f"let temporal operators stand around {word}(...), not inside")
        node: Node
        if word == "count":
            node = self.boolean(word, body)
        else:
            node = self.number_in(word, body, f"count({_short(body)}) says how often it holds")
        function: Any = str(word)
        return self.piece(Aggregate(function, node, self.place(word)), self.place(word), body)

    def literal(self, word: Token) -> _Piece:
        if not math.isfinite(float(word)):
            raise RequirementError(f"the number {word} is too large", self.place(word))
        return _Piece(Number(float(word)), self.place(word))

    def signal(self, word: Token, index: _Real | None) -> _Piece:
        place = self.place(word)
        if word in _RESERVED:
            raise RequirementError(f"{word} cannot name a signal", place, _LETTERS)
        return _Piece(Signal(str(word), None if index is None else index.natural("the index"), place), place)

    def label(self, word: Token) -> _Piece:
        place = self.place(word)
        return _Piece(Label(word[1:-1], place), place)

    def truth(self, word: Token) -> _Piece:
        return _Piece(Bool(word == "true"), self.place(word))

    # numbers outside of formulas

    def at_most(self, comparison: Token, upper: _Real) -> Bound:
        if comparison == "=":
            return Bound(upper.natural("the bound"), upper.natural("the bound"), self.place(comparison))
        if _ASCII.get(comparison, comparison) != "<=":
            raise RequirementError(
                f"an operator cannot be bounded by {comparison}",
                self.place(comparison),
                "write <=k for at most k steps ahead, or [a,b]; F, G and X are no names of signals",
            )
        return Bound(0, upper.natural("the bound"), self.place(comparison))

    def between(self, lower: _Real, upper: _Real) -> Bound:
        a, b = lower.natural("the bound"), upper.natural("the bound")
        if a > b:
            raise _empty(lower, upper)
        return Bound(a, b, lower.place)

    def number(self, sign: Token | None, digits: Token) -> _Real:
        return _Real(f"{'-' if sign else ''}{digits}", self.place(sign or digits))

    # types

    def piece(self, node: Node, place: SourceLocation, *operands: _Piece) -> _Piece:
        depth = 1 + max(each.depth for each in operands)
        if depth > MAX_DEPTH:
            raise RequirementError(
                f"more than {MAX_DEPTH} operators inside each other", place, "split the formula into several"
            )
        self.temporal += isinstance(node, Finally | Globally | Until | WeakUntil | Release)
        if self.temporal > MAX_TEMPORAL:
            raise RequirementError(f"more than {MAX_TEMPORAL} operators F, G, U, W and R", place, SPLIT)
        self.count(max(1, len(operands) - 1), place)
        return _Piece(node, place, depth)

    def count(self, operators: int, place: SourceLocation) -> None:
        self.operators += operators
        if self.operators > MAX_OPERATORS:
            raise RequirementError(f"more than {MAX_OPERATORS} operators", place, SPLIT)

    def one_state(self, word: str, piece: _Piece, advice: str) -> None:
        if is_formula(piece.node) and not is_state_formula(piece.node):
            raise RequirementError(
                f"{word} looks at one state at a time, but {_short(piece)} has a temporal operator in it",
                piece.place,
                advice,
            )

    def boolean(self, word: str, piece: _Piece) -> Formula:
        if is_formula(piece.node):
            return piece.node
        raise RequirementError(
            f"{word} needs something that is true or false, but {_short(piece)} is a number",
            piece.place,
            "compare it with another number, as in distance >= 0.1",
        )

    def number_in(self, word: str, piece: _Piece, advice: str = "join Booleans by ! & | => <=>") -> Term:
        if is_term(piece.node):
            return piece.node
        raise RequirementError(
            f"{word} needs a number, but {_short(piece)} is true or false",
            piece.place,
            advice,
        )


def _empty(lower: _Real, upper: _Real) -> RequirementError:
    return RequirementError(
        f"the interval [{lower.text},{upper.text}] is empty", lower.place, "its smaller end stands first"
    )


def _best(word: str) -> Any:
    """Of a question over all controllers: "max" or "min"."""
    return next((each for each in ("max", "min") if each in word), None)


def _short(piece: _Piece) -> str:
    text = str(piece.node)
    return text if len(text) <= 40 else f"{text[:37]}..."


# ---- text that is no tree at all ---------------------------------------------------------------------------

# What may follow, in the words of a reader: a phrase, the terminals that call for it, and those it covers as well.
_OPERAND = {"NAME", "NUMBER", "STRING", "TRUTH", "FUNCTION", "AGGREGATE", "MINUS", "LPAR"}
_PROPERTY = {"ASK_PATH", "ASK_REWARD", "R", "STEADY", "CONF"}
_EXPECTED: tuple[tuple[str, set[str], set[str]], ...] = (
    (
        "P>=p [ ... ], R{x}<=r [ C ], Rmax=? [ C ] or a name in quotes",
        {"PROB", "STRING"},
        _PROPERTY | {"$END", "SEMICOLON"},
    ),
    ("P>=p [ ... ], R{x}<=r [ C ] or Rmax=? [ C ]", {"PROB"}, _PROPERTY),
    (
        "[ C ], [ C<=k ], [ I=k ], [ F φ ] or [ S ]",
        {"INSTANT", "PREFIX"},
        _OPERAND | {"CONF", "STEADY", "NOT"},
    ),
    ("a formula", {"PREFIX", "NAME"}, _OPERAND | {"NOT", "RELATION", "LSQB"}),
    ("a number or a signal", {"NAME"}, _OPERAND),
    ("a number", {"NUMBER"}, {"MINUS"}),
    ("a bound such as >=0.95 or in [0.8,0.9]", {"IN"}, {"EQUALITY", "RELATION"}),
    (">=", {"RELATION"}, {"EQUALITY"}),
    ("C", {"CONF"}, set()),
    ("& C>=c", {"_AND"}, {"_OR", "WITHIN"}),
    (";", {"SEMICOLON"}, set()),
    ("=?", {"ASK"}, set()),
    (":", {"COLON"}, set()),
    (",", {"COMMA"}, set()),
    ("(", {"LPAR"}, set()),
    (")", {"RPAR"}, set()),
    ("[", {"LSQB"}, set()),
    ("]", {"RSQB"}, set()),
    ("{", {"LBRACE"}, set()),
    ("}", {"RBRACE"}, set()),
    ("the end of the text", {"$END"}, set()),
)
_SLIPS = {"==": "=", "&&": "&", "||": "|", "->": "=>"}


def _syntax_error(text: str, start: str, error: UnexpectedInput) -> RequirementError:
    at = error.pos_in_stream or 0
    place = _place(text, error.line, error.column)
    if isinstance(error, UnexpectedToken):
        expected = f"expected {_expected(error.accepts or error.expected)}"
        if error.token.type == "$END":
            written = text.rstrip().split("\n")
            return RequirementError(
                "the text ends too early", _place(text, len(written), len(written[-1]) + 1), expected
            )
        if (reason := _other_prism(error.token, error.accepts or set())) and not _slip(text, at):
            return RequirementError(f"unexpected {error.token}", place, reason)
        advice = _slip(text, at) or _bare_formula(error) + expected
        return RequirementError(f"unexpected {error.token}", place, advice)
    if text[at] == '"':
        return RequirementError(
            "a quote that is not closed", place, 'names and labels end with " on the same line'
        )
    try:  # the lexer does not know what the parser expects: ask for the text up to here
        _lark().parse(text[:at], start=start)
        expected = "expected an operator or the end of the text"
    except UnexpectedToken as before:
        expected = f"expected {_expected(before.accepts or before.expected)}"
    return RequirementError(f"unexpected character {text[at]!r}", place, _slip(text, at) or expected)


def _place(text: str, line: int, column: int) -> SourceLocation:
    return SourceLocation(line, column, text.split("\n")[line - 1])


def _expected(terminals: Iterable[str]) -> str:
    left, phrases = set(terminals), []
    for phrase, calls_for_it, covers in _EXPECTED:
        if calls_for_it <= left:
            left -= calls_for_it | covers
            phrases.append(phrase)
    if left:
        phrases.append("an operator")
    return " or ".join(phrases)


def _slip(text: str, at: int) -> str:
    """Advice for the operators of other languages."""
    written = next(
        (slip for slip in _SLIPS if slip in (text[at : at + 2], text[max(at - 1, 0) : at + 1])), None
    )
    return f"PRISM writes {_SLIPS[written]} for {written}" if written else ""


# What else a property may start with in PRISM, and why it does not here.
_OTHER_STARTS = {
    "const": "constants are not known here: write the number where it is needed",
    "label": "labels are the Boolean signals of a domain: write the state formula where it is needed",
    "filter": "a requirement is about episodes, from their first state on: other states cannot be filtered",
    "multi": "properties in one text are required together: separate them by ;",
    "A": "episodes cannot show what all paths do: write P>=p [ ... ], with p below 1",
    "E": "episodes cannot show what some path does: write P>=p [ ... ], with p above 0",
}


def _other_prism(token: Token, accepts: set[str]) -> str:
    """Why something that PRISM knows is refused."""
    if "PROB" in accepts:
        calculated = "answers cannot be calculated with: ask for each by itself"
        return calculated if token.type == "NUMBER" else _OTHER_STARTS.get(str(token), "")
    if "NAME" in accepts and token.type in _PROPERTY | {"PROB", "INSTANT"}:
        return f"{token} cannot name a signal, nor stand inside a formula: {_LETTERS}"
    if "NUMBER" in accepts and "NAME" not in accepts and token.type in ("NAME", "LPAR"):
        return "constants and expressions are not known here: write the number itself"
    if token.type == "LBRACE" and "RSQB" in accepts:
        return "a requirement is about episodes, from their first state on: other states cannot be filtered"
    if token.type in ("PLUS", "MINUS", "TIMES", "DIVIDE") and "SEMICOLON" in accepts:
        return "answers cannot be calculated with: ask for each by itself"
    return ""


def _bare_formula(error: UnexpectedToken) -> str:
    is_formula_start = error.token.type in _OPERAND | {"PREFIX", "NOT"}
    return (
        "a formula stands inside P>=p [ ... ]; "
        if is_formula_start and "PROB" in (error.accepts or ())
        else ""
    )
