"""Parser of the requirement language; every error has its line, column and a remedy."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from functools import cache, lru_cache
from typing import Any, Literal, NamedTuple, cast

from lark import Lark, Token, Transformer_NonRecursive, v_args
from lark.exceptions import UnexpectedInput, VisitError

from psyco._src.core.errors import RequirementError, SourceLocation
from psyco._src.logic.ast import (
    DEFAULT_CONFIDENCE,
    Aggregate,
    Arith,
    Bool,
    Bound,
    Call,
    Compare,
    Connective,
    Constraint,
    Expectation,
    Formula,
    Goal,
    Group,
    Instant,
    Label,
    LongRun,
    Minus,
    Node,
    Not,
    Number,
    Over,
    Quantified,
    Quantity,
    Question,
    Reaching,
    Requirement,
    Signal,
    Temporal,
    Term,
    Total,
    is_formula,
    is_state_formula,
    is_term,
    walk,
)
from psyco._src.logic.syntax_errors import EXPECTED, RESERVED_LETTERS, syntax_error

# Far beyond any practical requirement: safe for recursive functions, and compiled in less than ten seconds (XLA takes a
# tenth of a second per temporal operator).
MAX_LENGTH = 100_000  # characters
MAX_DEPTH = 100  # nested operators
MAX_OPERATORS = 1000
MAX_TEMPORAL = 60  # operators F, G, U, W, R
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


# Words that make a property a sentence of structured English.
SENTENCE = re.compile(r"\bshall\b|\b(?:max|min)imi[sz]e\s+\w", re.IGNORECASE)


def parse(text: str) -> Requirement:
    """Parse a requirement: a goal (by default to maximise the return), constraints and questions.

    Each may also be a sentence of structured English: `distance shall always be at least 0.1 with probability at least
    0.85`.

    Raises RequirementError, which shows the location of the error, for an invalid text.
    """
    if not isinstance(text, str):
        raise RequirementError(f"a requirement is text, got {text!r}")
    return cast(Requirement, _parse(text, "requirement"))


def parse_formula(text: str) -> Formula:
    """Parse a path formula alone, such as `G (distance >= 0.1)`; raises RequirementError like `parse`."""
    return cast(Formula, _parse(text, "formula"))


def is_signal_name(name: str) -> bool:
    """Return whether a word, or several with dots between them, can name a signal in formulas."""
    try:
        return cast(Compare, parse_formula(f"{name} > 0")).left == Signal(name)
    except RequirementError:
        return False


# Trees are immutable. A study parses the same text for every cell, at about 2 ms each without a cache.
@lru_cache(maxsize=1024)
def _parse(text: str, start: str) -> Requirement | Formula:
    if len(text) > MAX_LENGTH:
        raise RequirementError(
            f"a requirement of {len(text):,} characters; at most {MAX_LENGTH:,} are read", None, SPLIT
        )
    if start == "requirement" and SENTENCE.search(text):
        from psyco._src.logic.structured_english import parse_sentences

        return parse_sentences(text)
    return cast("Requirement | Formula", transform(_Builder(text), text, start))


def transform(builder: _Builder, text: str, start: str) -> Any:
    """Parse a text from a start rule of the grammar; raise RequirementError for a syntax error."""
    try:
        return builder.transform(_lark().parse(text, start=start))
    except UnexpectedInput as error:
        raise syntax_error(text, start, error, _lark(), EXPECTED, builder.text) from None
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


class _Expression(NamedTuple):
    """A formula or term under construction."""

    node: Node
    location: SourceLocation
    depth: int = 1


class _Property(NamedTuple):
    """A goal, constraint or question, where it starts, and where its name stands if it has one."""

    statement: Any  # Goal | Constraint | Expectation | Question
    location: SourceLocation
    name_location: SourceLocation | None = None


class _TailPart(NamedTuple):
    """`C>=c` or `within [lo,hi]` after a property."""

    kind: Literal["confidence", "range"]
    value: Any  # float | tuple[float, float]
    location: SourceLocation


class _Tail(NamedTuple):
    """All that follows a property."""

    confidence: float
    within: tuple[float, float] | None
    location: SourceLocation | None  # of the range, or else of the confidence, if there is one


class _Real(NamedTuple):
    """A number outside of formulas: a probability, a step, an index."""

    text: str
    location: SourceLocation

    def probability(self, what: str) -> float:
        value = float(self.text)
        if not 0.0 <= value <= 1.0:
            problem = f"{what} {self.text} is not between 0 and 1"
            raise RequirementError(problem, self.location, "write 95% as 0.95")
        return value

    def number(self) -> float:
        value = float(self.text)
        if not math.isfinite(value):
            raise RequirementError(f"the number {self.text} is too large", self.location)
        return value

    def natural(self, what: str) -> int:
        if not self.text.isdecimal():
            problem = f"{what} {self.text} is not a whole number of at least 0"
            raise RequirementError(problem, self.location, "steps and positions are counted 0, 1, 2, ...")
        if len(self.text) > MAX_DIGITS:
            raise RequirementError(f"{what} is too large", self.location, f"{MAX_DIGITS} digits are enough")
        return int(self.text)


class _Bounds(NamedTuple):
    symbol: str
    ends: tuple[_Real, ...]  # one, or both of an interval
    location: SourceLocation


@v_args(inline=True)
class _Builder(Transformer_NonRecursive[Token, Any]):
    """Builds the tree with one method per rule of grammar.lark; not recursive, so any depth of text is safe."""

    def __init__(self, text: str) -> None:
        super().__init__(visit_tokens=False)
        self.text, self.lines = text, text.split("\n")
        self.operators = self.temporal = 0  # so far

    def at(self, token: Token) -> SourceLocation:
        """Return the location of a token; all locations of a line share its text."""
        line = token.line or 1
        return SourceLocation(line, token.column or 1, self.lines[line - 1])

    # properties

    def requirement(self, *properties: _Property) -> Requirement:
        names: set[str] = set()
        for each in properties:
            name = each.statement.name
            if name in names:
                problem = f'the name "{name}" is given twice'
                raise RequirementError(problem, each.name_location, "give every property its own name")
            names |= {name} - {None}
        goals = [each for each in properties if isinstance(each.statement, Goal)]
        if len(goals) > 1:
            advice = "a requirement has one goal; make the other a constraint"
            raise RequirementError("a second goal", goals[1].location, advice)
        statements = [each.statement for each in properties]
        return Requirement(
            goals[0].statement if goals else Goal(),
            tuple(each for each in statements if isinstance(each, Constraint | Expectation)),
            tuple(each for each in statements if isinstance(each, Question)),
            text=self.text,
        )

    def property(self, name: Token | None, group: Group | None, body: _Property | _TailPart) -> _Property:
        if isinstance(body, _TailPart):
            advice = "write P>=p [ ... ] & C>=c in one property"
            raise RequirementError("a confidence without a probability", body.location, advice)
        if group is not None:
            if isinstance(body.statement, Goal):
                advice = "the return is that of all agents; bound that of each, as in P>=0.9 [ F agent.return >= 3 ]"
                raise RequirementError("a goal for each agent", group.location, advice)
            body = body._replace(statement=replace(body.statement, for_each=group))
        if name is None:
            return body
        return _Property(replace(body.statement, name=name[1:-1]), body.location, self.at(name))

    def for_each(self, word: Token, name: Token) -> Group:
        return Group(str(name), self.at(name))

    def constraint(
        self, word: Token, bounds: _Bounds, environments: Token | None, path: _Expression, tail: _Tail
    ) -> _Property:
        self.count(1, self.at(word))
        formula, between = self.boolean("P", path), self.bounds("P", bounds, 0.0, 1.0)
        share = None if environments is None else self.share_of_environments(environments)
        return _Property(Constraint(formula, *between, self.confidence_only(tail), environments=share), self.at(word))

    def share_of_environments(self, words: Token) -> float:
        text = words[2:].partition("%")[0].strip()
        share = round(float(text) / 100.0, 12)
        if not 0.0001 <= share <= 0.9999:
            advice = "write a share from 0.01% to 99.99%, as in 95%: no number of environments shows all of them"
            raise RequirementError(f"{text:.20}% of environments", self.at(words), advice)
        return share

    def expectation(
        self, word: Token, reward: _Expression | None, bounds: _Bounds, over: Over, tail: _Tail
    ) -> _Property:
        between = self.bounds("R", bounds, -math.inf, math.inf)
        stated = Expectation(self.quantity(word, reward, over), *between, tail.confidence, tail.within)
        return _Property(stated, self.at(word))

    def cvar(
        self, word: Token, reward: _Expression | None, level: _Real, bounds: _Bounds, over: Over, tail: _Tail
    ) -> _Property:
        if bounds.symbol in ("in", "=", "!="):
            advice = "write CVaR{x}(a)<=b for the mean of the largest values, CVaR{x}(a)>=b for that of the smallest"
            raise RequirementError(f"CVaR cannot be compared by {bounds.symbol}", bounds.location, advice)
        between = self.bounds("CVaR", bounds, -math.inf, math.inf)
        subject = self.tail_mean(word, reward, level, over)
        return _Property(Expectation(subject, *between, tail.confidence, tail.within), self.at(word))

    def share(self, word: Token, bounds: _Bounds, path: _Expression, tail: _Tail) -> _Property:
        between = self.bounds("S", bounds, 0.0, 1.0)
        stated = Expectation(self.time_in(word, path), *between, self.confidence_only(tail))
        return _Property(stated, self.at(word))

    def asked_path(self, word: Token, path: _Expression, tail: _Tail) -> _Property:
        self.count(1, self.at(word))
        subject = self.boolean("P", path) if word[0] == "P" else self.time_in(word, path)
        return _Property(Question(subject, _optimum(word), self.confidence_only(tail)), self.at(word))

    def asked_return(self, word: Token, over: Over, tail: _Tail) -> _Property:
        optimum = _optimum(word)
        if optimum is None or over != Total():
            return self.asked_reward(word, None, word, over, tail)
        if tail.location is not None:
            advice = f"ask what can be reached with R{{reward}}{optimum}=? [ C ]"
            raise RequirementError("a goal has neither a confidence nor a range", tail.location, advice)
        return _Property(Goal(optimum == "max"), self.at(word))

    def asked_reward(self, word: Token, reward: _Expression | None, asked: Token, over: Over, tail: _Tail) -> _Property:
        subject = self.quantity(word, reward, over)
        return _Property(Question(subject, _optimum(asked), tail.confidence, tail.within), self.at(word))

    def asked_cvar(
        self, word: Token, reward: _Expression | None, level: _Real, asked: Token, over: Over, tail: _Tail
    ) -> _Property:
        if optimum := _optimum(asked):
            problem = f"the {optimum} of CVaR over all controllers is not computed"
            raise RequirementError(problem, self.at(asked), "ask for that of the policy, CVaR{x}(a)=? [ C ]")
        subject = self.tail_mean(word, reward, level, over)
        return _Property(Question(subject, None, tail.confidence, tail.within), self.at(word))

    def threshold(self, comparison: Token, end: _Real) -> _Bounds:
        return _Bounds(_symbol(comparison), (end,), self.at(comparison))

    def interval(self, word: Token, lower: _Real, upper: _Real) -> _Bounds:
        return _Bounds("in", (lower, upper), self.at(word))

    def bounds(self, word: str, given: _Bounds, least: float, most: float) -> tuple[Any, float, float]:
        """Return the comparison and the bounds of a value that lies between `least` and `most`."""
        symbol = given.symbol
        if symbol in ("=", "!="):
            advice = f"write {word}>=p, {word}>p, {word}<=p, {word}<p or {word} in [a,b]"
            raise RequirementError(f"{word} cannot be compared by {symbol}", given.location, advice)
        is_probability = (least, most) == (0.0, 1.0)
        values = [e.probability("the probability") if is_probability else e.number() for e in given.ends]
        if symbol == "in":
            if values[0] > values[1]:
                raise _empty(*given.ends)
            return "in", values[0], values[1]
        if (symbol, values[0]) in ((">", most), ("<", least)):
            end = given.ends[0].text
            advice = f"write {word}{symbol}={end}"
            raise RequirementError(f"no probability is {symbol} {end}", given.location, advice)
        return (symbol, values[0], most) if ">" in symbol else (symbol, least, values[0])

    def tail(self, *parts: _TailPart) -> _Tail:
        confidences = [part for part in parts if part.kind == "confidence"]
        ranges = [part for part in parts if part.kind == "range"]
        if len(confidences) > 1 or len(ranges) > 1:
            problem = "a second confidence or range"
            raise RequirementError(problem, parts[-1].location, "give one of each at most")
        return _Tail(
            confidences[0].value if confidences else DEFAULT_CONFIDENCE,
            ranges[0].value if ranges else None,
            (ranges or parts)[0].location if parts else None,
        )

    def confidence_only(self, tail: _Tail) -> float:
        """Return the confidence of a bound on a probability; refuse a range."""
        if tail.within is not None:
            advice = "leave it out: probabilities lie within [0,1] anyway"
            raise RequirementError("a range for a probability", tail.location, advice)
        return tail.confidence

    def confidence(self, word: Token, comparison: Token, c: _Real) -> _TailPart:
        value = c.probability("the confidence")
        if _symbol(comparison) != ">=":
            problem = f"a confidence cannot be compared by {comparison}"
            advice = "write C>=c: being surer than asked is never wrong"
            raise RequirementError(problem, self.at(comparison), advice)
        return _TailPart("confidence", value, self.at(word))

    def within(self, word: Token, lower: _Real, upper: _Real) -> _TailPart:
        if lower.number() >= upper.number():
            raise _empty(lower, upper)
        return _TailPart("range", (lower.number(), upper.number()), self.at(word))

    # quantities

    def quantity(self, word: Token, reward: _Expression | None, over: Over) -> Quantity:
        self.count(1, self.at(word))
        return Quantity(Signal("reward", None, self.at(word)) if reward is None else reward.node, over)

    def tail_mean(self, word: Token, reward: _Expression | None, level: _Real, over: Over) -> Quantity:
        if not 0.0 < float(level.text) < 1.0:
            problem = f"the level {level.text} of CVaR is not between 0 and 1"
            raise RequirementError(problem, level.location, "write CVaR{x}(0.95) for the mean of the worst 5%")
        if isinstance(over, LongRun):
            advice = "CVaR is a mean over the worst episodes: write [ C ], [ C<=k ], [ I=k ] or [ F φ ]"
            raise RequirementError("a rate has no worst episodes", self.at(word), advice)
        return replace(self.quantity(word, reward, over), cvar=float(level.text))

    def time_in(self, word: Token, path: _Expression) -> Quantity:
        self.count(1, self.at(word))
        self.check_state("S", path, "S is about the long run already; P>=p [ ... ] is about paths")
        return Quantity(self.boolean("S", path), LongRun(share=True))

    def reward(self, body: _Expression) -> _Expression:
        if isinstance(body.node, Number):
            raise RequirementError(
                f"R{{{body.node}}} is the same at every step",
                body.location,
                "PRISM numbers the reward structures of a model; here name a signal, or write R{true} to count steps",
            )
        self.check_state("R", body, "a state formula is worth 1 where it holds; P>=p [ ... ] is about paths")
        return body

    def total(self, _: Token, comparison: Token | None, steps: _Real | None) -> Total:
        if comparison is None or steps is None:
            return Total()
        if _symbol(comparison) != "<=":
            advice = "write C<=k for the first k steps, or C for all of them"
            raise RequirementError(f"C cannot be bounded by {comparison}", self.at(comparison), advice)
        return Total(steps.natural("the bound"), self.at(comparison))

    def instant(self, word: Token, comparison: Token, step: _Real) -> Instant:
        if comparison != "=":
            problem = f"I cannot be compared by {comparison}"
            raise RequirementError(problem, self.at(comparison), "write I=k for state k")
        return Instant(step.natural("the step"), self.at(word))

    def long_run(self, _: Token) -> LongRun:
        return LongRun()

    def reaching(self, path: _Expression) -> Reaching:
        match path.node:
            case Temporal("F", (body,), None) if is_state_formula(body):
                return Reaching(body)
        raise RequirementError(
            f"R cannot be taken over {_short(path)}",
            path.location,
            "rewards are added up over [ C ] or [ C<=k ], or until a state is reached, [ F φ ] with no temporal "
            "operator in φ; besides there are [ I=k ] and [ S ]",
        )

    # formulas

    def formula(self, path: _Expression) -> Formula:
        return self.boolean("a path formula", path)

    def binary(self, left: _Expression, word: Token, bound: Bound | None, right: _Expression) -> _Expression:
        operator: Any = str(word)
        node = Temporal(operator, (self.boolean(word, left), self.boolean(word, right)), bound)
        return self.build(node, left.location, left, right)

    def prefix(self, word: Token, bound: Bound | None, body: _Expression) -> _Expression:
        operator: Any = _symbol(word)
        operands = (self.boolean(word, body),)
        if operator == "X" and bound is not None:
            if not bound.lower <= 1 <= bound.upper:
                problem = f"X looks one step ahead, which {bound} leaves out"
                raise RequirementError(problem, bound.location, f"write F{bound} instead")
            bound = None
        return self.build(Temporal(operator, operands, bound), self.at(word), body)

    def connective(self, left: _Expression, word: Token, right: _Expression) -> _Expression:
        return self.connect("=>" if word.type == "IMPLIES" else "<=>", word, left, right)

    def disjunction(self, *operands: _Expression) -> _Expression:
        return self.connect("|", "|", *operands)

    def conjunction(self, *operands: _Expression) -> _Expression:
        return self.connect("&", "&", *operands)

    def connect(self, operator: Any, word: str, *operands: _Expression) -> _Expression:
        node = Connective(operator, tuple(self.boolean(word, operand) for operand in operands))
        return self.build(node, operands[0].location, *operands)

    def negated(self, word: Token, body: _Expression) -> _Expression:
        return self.build(Not(self.boolean(word, body)), self.at(word), body)

    def compare(self, left: _Expression, word: Token, right: _Expression) -> _Expression:
        symbol: Any = _symbol(word)
        node: Formula
        if symbol in ("=", "!=") and not (is_term(left.node) and is_term(right.node)):  # between Booleans
            node = Connective("<=>", (self.boolean(word, left), self.boolean(word, right)))
            node = node if symbol == "=" else Not(node)
        else:
            node = Compare(symbol, self.term(word, left), self.term(word, right))
        return self.build(node, left.location, left, right)

    # terms

    def arith(self, left: _Expression, word: Token, right: _Expression) -> _Expression:
        operator: Any = _symbol(word)
        node = Arith(operator, self.term(word, left), self.term(word, right))
        return self.build(node, left.location, left, right)

    def minus(self, word: Token, body: _Expression) -> _Expression:
        return self.build(Minus(self.term(word, body)), self.at(word), body)

    def call(self, word: Token, *arguments: _Expression) -> _Expression:
        if (len(arguments) == 1) != (word == "abs"):
            wanted = "one number" if word == "abs" else "two numbers or more"
            raise RequirementError(f"{word} takes {wanted}, not {len(arguments)}", self.at(word))
        function: Any = str(word)
        node = Call(function, tuple(self.term(word, argument) for argument in arguments))
        return self.build(node, self.at(word), *arguments)

    def aggregate(self, word: Token, body: _Expression, *more: _Expression) -> _Expression:
        if more:
            raise RequirementError(f"{word} takes one argument, not {1 + len(more)}", self.at(word))
        if inner := next((node for node in walk(body.node) if isinstance(node, Aggregate)), None):
            problem = f"{inner.function} inside {word}: an aggregate cannot stand inside another one"
            raise RequirementError(problem, inner.location, "compare or add up the two side by side")
        self.check_state(word, body, f"let temporal operators stand around {word}(...), not inside")
        node: Node
        if word == "count":
            node = self.boolean(word, body)
        else:
            node = self.term(word, body, f"count({_short(body)}) says how often it holds")
        function: Any = str(word)
        return self.build(Aggregate(function, node, self.at(word)), self.at(word), body)

    def quantified(self, word: Token, body: _Expression) -> _Expression:
        quantifier: Any = str(word)
        node = Quantified(quantifier, self.boolean(word, body), self.at(word))
        return self.build(node, self.at(word), body)

    def literal(self, word: Token) -> _Expression:
        if not math.isfinite(float(word)):
            raise RequirementError(f"the number {word} is too large", self.at(word))
        return _Expression(Number(float(word)), self.at(word))

    def signal(self, word: Token, index: _Real | None) -> _Expression:
        location = self.at(word)
        if word in _RESERVED:
            raise RequirementError(f"{word} cannot name a signal", location, RESERVED_LETTERS)
        number = None if index is None else index.natural("the index")
        return _Expression(Signal(str(word), number, location), location)

    def label(self, word: Token) -> _Expression:
        return _Expression(Label(word[1:-1], self.at(word)), self.at(word))

    def truth(self, word: Token) -> _Expression:
        return _Expression(Bool(word == "true"), self.at(word))

    # numbers outside of formulas

    def at_most(self, comparison: Token, upper: _Real) -> Bound:
        if comparison != "=" and _symbol(comparison) != "<=":
            problem = f"an operator cannot be bounded by {comparison}"
            advice = "write <=k for at most k steps ahead, or [a,b]; F, G and X are no names of signals"
            raise RequirementError(problem, self.at(comparison), advice)
        steps = upper.natural("the bound")
        return Bound(steps if comparison == "=" else 0, steps, self.at(comparison))

    def between(self, lower: _Real, upper: _Real) -> Bound:
        a, b = lower.natural("the bound"), upper.natural("the bound")
        if a > b:
            raise _empty(lower, upper)
        return Bound(a, b, lower.location)

    def number(self, sign: Token | None, digits: Token) -> _Real:
        return _Real(f"{'-' if sign else ''}{digits}", self.at(sign or digits))

    # types and limits

    def build(self, node: Node, location: SourceLocation, *operands: _Expression) -> _Expression:
        """Return an operator with its operands; check the limits on depth and number."""
        depth = 1 + max(operand.depth for operand in operands)
        if depth > MAX_DEPTH:
            problem = f"more than {MAX_DEPTH} operators inside each other"
            raise RequirementError(problem, location, "split the formula into several")
        self.temporal += isinstance(node, Temporal) and node.operator != "X"
        if self.temporal > MAX_TEMPORAL:
            raise RequirementError(f"more than {MAX_TEMPORAL} operators F, G, U, W and R", location, SPLIT)
        self.count(max(1, len(operands) - 1), location)
        return _Expression(node, location, depth)

    def count(self, operators: int, location: SourceLocation) -> None:
        self.operators += operators
        if self.operators > MAX_OPERATORS:
            raise RequirementError(f"more than {MAX_OPERATORS} operators", location, SPLIT)

    def check_state(self, word: str, body: _Expression, advice: str) -> None:
        if is_formula(body.node) and not is_state_formula(body.node):
            problem = f"{word} looks at one state at a time, but {_short(body)} has a temporal operator in it"
            raise RequirementError(problem, body.location, advice)

    def boolean(self, word: str, body: _Expression) -> Formula:
        if is_formula(body.node):
            return body.node
        problem = f"{word} needs something that is true or false, but {_short(body)} is a number"
        advice = "compare it with another number, as in distance >= 0.1"
        raise RequirementError(problem, body.location, advice)

    def term(self, word: str, body: _Expression, advice: str = "join Booleans by ! & | => <=>") -> Term:
        if is_term(body.node):
            return body.node
        problem = f"{word} needs a number, but {_short(body)} is true or false"
        raise RequirementError(problem, body.location, advice)


def _symbol(token: Token) -> str:
    """Return the ASCII spelling of an operator."""
    return _ASCII.get(token, str(token))


def _empty(lower: _Real, upper: _Real) -> RequirementError:
    problem = f"the interval [{lower.text},{upper.text}] is empty"
    return RequirementError(problem, lower.location, "its smaller end stands first")


def _optimum(word: str) -> Any:
    """Return "max" or "min" for a question over all controllers, else None."""
    return next((optimum for optimum in ("max", "min") if optimum in word), None)


def _short(expression: _Expression) -> str:
    text = str(expression.node)
    return text if len(text) <= 40 else f"{text[:37]}..."
