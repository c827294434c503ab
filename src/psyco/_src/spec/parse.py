"""Text -> Requirement. Whatever is wrong with the text is said with its line, its column and a remedy."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple, NoReturn, cast

from lark import Lark, Token, Transformer_NonRecursive, UnexpectedToken, v_args
from lark.exceptions import UnexpectedInput, VisitError

from psyco._src.errors import Place, RequirementError
from psyco._src.spec.formula import (
    DEFAULT_CONFIDENCE,
    Aggregate,
    And,
    Arith,
    Bool,
    Bound,
    Call,
    Compare,
    Constraint,
    Finally,
    Formula,
    Globally,
    Goal,
    Iff,
    Implies,
    Label,
    Minus,
    Next,
    Node,
    Not,
    Number,
    Or,
    Release,
    Requirement,
    Signal,
    Term,
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
_RESERVED = {"A", "E", "I", "S"}  # PRISM's other operators; C F G P R U W X are words of the grammar
_BINARY: dict[str, type[Until | WeakUntil | Release]] = {"U": Until, "W": WeakUntil, "R": Release}


def parse(text: str) -> Requirement:
    """Read a requirement: a goal (the default is to maximise the return) and any number of constraints.

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
    place: Place
    depth: int = 1


class _Property(NamedTuple):
    """A goal or constraint, where it starts, and where its name stands if it has one."""

    statement: Any  # Goal | Constraint
    place: Place
    name_place: Place | None = None


class _Confidence(NamedTuple):
    value: float
    place: Place


class _Real(NamedTuple):
    """A number that is not part of a formula: a probability, a step, an index."""

    text: str
    place: Place

    def probability(self, what: str) -> float:
        value = float(self.text)
        if not 0.0 <= value <= 1.0:
            raise RequirementError(
                f"{what} {self.text} is not between 0 and 1", self.place, "write 95% as 0.95"
            )
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


@v_args(inline=True)
class _Builder(Transformer_NonRecursive[Token, Any]):
    """One method per rule of grammar.lark; non-recursive, so that no text is too deep for it."""

    def __init__(self, text: str) -> None:
        super().__init__(visit_tokens=False)
        self.text, self.lines = text, text.split("\n")
        self.operators = self.temporal = 0  # so far

    def place(self, token: Token) -> Place:
        line = token.line or 1
        return Place(line, token.column or 1, self.lines[line - 1])  # all places of a line share it

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
        constraints = tuple(each.statement for each in properties if isinstance(each.statement, Constraint))
        return Requirement(goals[0].statement if goals else Goal(), constraints, text=self.text)

    def property(self, name: Token | None, body: _Property | _Confidence) -> _Property:
        if isinstance(body, _Confidence):
            raise RequirementError(
                "a confidence without a probability", body.place, "write P>=p [ ... ] & C>=c in one property"
            )
        if name is None:
            return body
        return _Property(replace(body.statement, name=name[1:-1]), body.place, self.place(name))

    def goal(self, word: Token, _: Token) -> _Property:
        return _Property(Goal(word.startswith("Rmax")), self.place(word))

    def constraint(
        self, word: Token, bounds: tuple[Any, float, float], path: _Piece, confidence: _Confidence | None
    ) -> _Property:
        self.count(1, self.place(word))
        c = DEFAULT_CONFIDENCE if confidence is None else confidence.value
        return _Property(Constraint(self.boolean("P", path), *bounds, c), self.place(word))

    def query(self, word: Token, *_: Any) -> NoReturn:
        raise RequirementError(
            "a question instead of a requirement",
            self.place(word),
            "PSyCo needs a bound to work towards: write P>=0.95 [ ... ] instead of P=? [ ... ]",
        )

    def threshold(self, comparison: Token, p: _Real) -> tuple[str, float, float]:
        symbol, value = _ASCII.get(comparison, str(comparison)), p.probability("the probability")
        if symbol in ("=", "!="):
            raise RequirementError(
                f"P cannot be compared by {symbol}",
                self.place(comparison),
                "write P>=p, P>p, P<=p, P<p or P in [a,b]",
            )
        if (symbol, value) in ((">", 1.0), ("<", 0.0)):
            raise RequirementError(
                f"no probability is {symbol} {p.text}", self.place(comparison), f"write P{symbol}={p.text}"
            )
        return (symbol, value, 1.0) if ">" in symbol else (symbol, 0.0, value)

    def interval(self, _: Token, lower: _Real, upper: _Real) -> tuple[str, float, float]:
        a, b = lower.probability("the probability"), upper.probability("the probability")
        if a > b:
            raise _empty(lower, upper)
        return "in", a, b

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
        if is_formula(body.node) and not is_state_formula(body.node):
            raise RequirementError(
                f"{word} looks at one state at a time, but {_short(body)} has a temporal operator in it",
                body.place,
                f"let temporal operators stand around {word}(...), not inside",
            )
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
            raise RequirementError(
                f"{word} cannot name a signal", place, "PRISM reserves the letters A C E F G I P R S U W X"
            )
        return _Piece(Signal(str(word), None if index is None else index.natural("the index"), place), place)

    def label(self, word: Token) -> _Piece:
        place = self.place(word)
        return _Piece(Label(word[1:-1], place), place)

    def truth(self, word: Token) -> _Piece:
        return _Piece(Bool(word == "true"), self.place(word))

    # numbers outside of formulas

    def at_most(self, comparison: Token, upper: _Real) -> Bound:
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

    def piece(self, node: Node, place: Place, *operands: _Piece) -> _Piece:
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

    def count(self, operators: int, place: Place) -> None:
        self.operators += operators
        if self.operators > MAX_OPERATORS:
            raise RequirementError(f"more than {MAX_OPERATORS} operators", place, SPLIT)

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


def _short(piece: _Piece) -> str:
    text = str(piece.node)
    return text if len(text) <= 40 else f"{text[:37]}..."


# ---- text that is no tree at all ---------------------------------------------------------------------------

# What may follow, in the words of a reader: a phrase, the terminals that call for it, and those it covers as well.
_OPERAND = {"NAME", "NUMBER", "STRING", "TRUTH", "FUNCTION", "AGGREGATE", "MINUS", "LPAR"}
_EXPECTED: tuple[tuple[str, set[str], set[str]], ...] = (
    (
        "P>=p [ ... ], Rmax=? [ C ] or a name in quotes",
        {"PROB", "GOAL"},
        {"STRING", "QUERY", "CONF", "$END", "SEMICOLON"},
    ),
    ("P>=p [ ... ] or Rmax=? [ C ]", {"PROB"}, {"GOAL", "QUERY", "CONF"}),
    ("a formula", {"PREFIX", "NAME"}, _OPERAND | {"NOT", "RELATION", "LSQB"}),
    ("a number or a signal", {"NAME"}, _OPERAND),
    ("a number", {"NUMBER"}, {"MINUS"}),
    ("a bound such as >=0.95 or in [0.8,0.9]", {"IN"}, {"EQUALITY", "RELATION"}),
    (">=", {"RELATION"}, {"EQUALITY"}),
    ("C", {"CONF"}, set()),
    ("& C>=c", {"_AND"}, {"_OR"}),
    (";", {"SEMICOLON"}, set()),
    (":", {"COLON"}, set()),
    (",", {"COMMA"}, set()),
    ("(", {"LPAR"}, set()),
    (")", {"RPAR"}, set()),
    ("[", {"LSQB"}, set()),
    ("]", {"RSQB"}, set()),
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


def _place(text: str, line: int, column: int) -> Place:
    return Place(line, column, text.split("\n")[line - 1])


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


def _bare_formula(error: UnexpectedToken) -> str:
    is_formula_start = error.token.type in _OPERAND | {"PREFIX", "NOT"}
    return (
        "a formula stands inside P>=p [ ... ]; "
        if is_formula_start and "PROB" in (error.accepts or ())
        else ""
    )
