"""Structured English: sentences in the manner of NASA's FRET, translated to formulas by a small grammar.

`Whenever C, the system shall within 5 steps satisfy φ with probability at least 0.9, 98% sure.` A sentence has a
subject, `shall`, a response, and in any order: a scope (`while`, `after`), a condition (`when`, `whenever`), a timing,
a probability and a confidence. In FRET the probability stands inside of scope and condition; here it is that of a whole
episode.
"""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files
from itertools import pairwise
from typing import Any, NamedTuple, cast

from lark import Lark, Token, v_args
from lark.exceptions import UnexpectedInput, VisitError

from psyco._src.core.errors import RequirementError, SourceLocation
from psyco._src.logic.ast import (
    DEFAULT_CONFIDENCE,
    END,
    Aggregate,
    Bound,
    Compare,
    Constraint,
    Goal,
    Group,
    Not,
    Number,
    Requirement,
    Signal,
    Temporal,
    is_state_formula,
)
from psyco._src.logic.parser import SENTENCE, transform
from psyco._src.logic.parser import _Bounds as ParsedBounds
from psyco._src.logic.parser import _Builder as TreeBuilder
from psyco._src.logic.parser import _Expression as ParsedExpression
from psyco._src.logic.parser import _Property as ParsedProperty
from psyco._src.logic.parser import _Real as ParsedNumber
from psyco._src.logic.syntax_errors import EXPECTED, OPERAND, Phrases, syntax_error

COMPARATIVES = {
    "at least": ">=",
    "at most": "<=",
    "more than": ">",
    "greater than": ">",
    "above": ">",
    "less than": "<",
    "fewer than": "<",
    "smaller than": "<",
    "below": "<",
    "equal to": "=",
    "different from": "!=",
}
TIMINGS = (
    "say when: always, never, eventually, immediately, finally, at the next step, within k steps, for k steps, "
    "after k steps, k steps later, "
    "until ..., before ..., or always, never or eventually from step a to b"
)
SOME = ("within", "after", "before")  # windows in which one state is enough
_NOT_CODE = re.compile(r'"[^"\n]*"|//[^\n]*')
_FULL_STOP = re.compile(r"\.(?=\s|$)")


def parse_sentences(text: str) -> Requirement:
    """Parse a requirement whose properties are sentences or formulas; each ends with `;`, a sentence also with `.`.

    Raises RequirementError like `parse`.
    """
    builder = SentenceBuilder(text)
    properties: list[ParsedProperty] = []
    for part in split_properties(text):
        if SENTENCE.search(_masked(part)):
            properties.append(_transform_sentence(builder, part, text))
        else:
            properties += transform(builder, part, "requirement")
    return TreeBuilder(text).requirement(*properties)


def split_properties(text: str) -> list[str]:
    """Return the properties of a text, each at its place in a text of blanks, so that error locations stay true."""
    masked, parts, begin = _masked(text), [], 0
    for end in [*(match.start() for match in re.finditer(";", masked)), len(text)]:
        stops = [begin - 1, end]
        if SENTENCE.search(masked[begin:end]):
            stops[1:1] = [begin + match.start() for match in _FULL_STOP.finditer(masked[begin:end])]
        parts += [(a + 1, b) for a, b in pairwise(stops)]
        begin = end + 1
    return [_only(text, a, b) for a, b in parts if masked[a:b].strip()]


def _masked(text: str) -> str:
    """Return the text without quoted names and comments, in the same length."""
    return _NOT_CODE.sub(lambda found: ("_" if found[0][0] == '"' else " ") * len(found[0]), text)


def _only(text: str, begin: int, end: int) -> str:
    blanks = re.sub(r"[^\n]", " ", text)
    return blanks[:begin] + text[begin:end] + blanks[end:]


def _transform_sentence(builder: SentenceBuilder, part: str, text: str) -> ParsedProperty:
    try:
        return builder.transform(_lark().parse(part))
    except UnexpectedInput as error:
        raise syntax_error(part, "sentence", error, _lark(), _PHRASES, source=text) from None
    except VisitError as error:
        raise error.orig_exc from None


@cache
def _lark() -> Lark:
    folder = files("psyco._src.logic")
    grammars = [(folder / f"{name}.lark").read_text(encoding="utf-8") for name in ("grammar", "structured_english")]
    return Lark("\n".join(grammars), parser="lalr", lexer="basic", start="sentence", maybe_placeholders=True)


_PARTS = {
    "ALWAYS",
    "NEVER",
    "EVENTUALLY",
    "IMMEDIATELY",
    "FINALLY",
    "NEXT",
    "WITHIN_FIRST",
    "FOR_FIRST",
    "FROM_STEP",
    "PROBABILITY",
}
_PARTS |= {"WHILE", "BEFORE", "AFTER", "WHENEVER", "WHEN", "UNTIL", "EPISODES", "SURE", "CONFIDENCE", "ENVIRONMENTS"}
_PARTS |= {"ALMOST_SURELY"}
_VERBS = {"BE", "HOLD", "OCCUR", "SATISFY", "REACH", "AVOID", "KEEP"}
_PHRASES: Phrases = (
    (
        "a verb: be at least 0.1, hold, occur at most twice, satisfy ..., reach ..., avoid ..., keep ...",
        _VERBS,
        _PARTS | OPERAND | {"COMMA"},
    ),
    (
        "the subject of a sentence",
        {"THE", "NAME"},
        _PARTS | OPERAND | {"NOT", "MAXIMISE", "MINIMISE", "COMMA", "FOR_EACH"},
    ),
    ("shall", {"SHALL"}, OPERAND | {"RELATION", "EQUALITY", "IS", "COMMA"}),
    ("at least, at most, more than or less than", {"COMPARATIVE"}, {"BETWEEN", "RELATION", "EQUALITY"}),
    ("steps", {"STEPS"}, set()),
    ("when, how likely (with probability at least p) or how sure (98% sure)", {"PROBABILITY"}, _PARTS | OPERAND),
    *EXPECTED,
)


class SentencePart(NamedTuple):
    """A scope, condition, timing, window, probability, confidence or share of environments."""

    kind: str
    value: Any
    location: SourceLocation


class Response(NamedTuple):
    """What the subject shall do, in one state, and when, where the verb says it."""

    formula: ParsedExpression
    quantifier: str | None
    counts: bool = False  # whether it is about how often something has occurred in the episode so far


class Window(NamedTuple):
    """The states of a timing: `within`, `for`, `after`, `from`, `later` with a bound, `until`, `before` a formula."""

    word: str
    bound: Bound | None
    formula: ParsedExpression | None


@v_args(inline=True)
class SentenceBuilder(TreeBuilder):
    """Builds a property from a sentence, with one method per rule of structured_english.lark."""

    subject: ParsedExpression | None  # None: a component, which is no part of the formula

    def requirement(self, *properties: ParsedProperty) -> Any:
        """Return the properties: those of all parts of the text become one requirement."""
        return properties

    def sentence(self, name: Token | None, group: Group | None, body: ParsedProperty) -> ParsedProperty:
        return self.property(name, group, body)

    def goal(self, word: Token, *what: Token) -> ParsedProperty:
        if what[-1] != "return":
            advice = "write: maximise the return; anything else is a constraint"
            raise RequirementError(f"{what[-1]} cannot be the goal", self.at(what[-1]), advice)
        return ParsedProperty(Goal(word.type == "MAXIMISE"), self.at(word))

    def stated(self, *pieces: Any) -> ParsedProperty:
        shall = next(piece for piece in pieces if isinstance(piece, Token))
        subject = next(piece for piece in pieces if isinstance(piece, _Subject))
        say = next(piece for piece in pieces if isinstance(piece, _Predicate))
        parts = _by_kind([piece for piece in pieces if isinstance(piece, SentencePart)])
        response = say.respond(subject)
        formula = self.formula_of(response, parts, self.at(shall))
        if "probability" not in parts:
            advice = "add it, as in: with probability at least 0.95; episodes cannot show more than that"
            raise RequirementError("a sentence without a probability", self.at(shall), advice)
        bounds = self.bounds("P", parts["probability"].value, 0.0, 1.0)
        confidence = parts["confidence"].value if "confidence" in parts else DEFAULT_CONFIDENCE
        share = parts["environments"].value if "environments" in parts else None
        self.count(1, self.at(shall))
        stated = Constraint(self.boolean("shall", formula), *bounds, confidence, environments=share)
        return ParsedProperty(stated, self.at(shall))

    # subjects and verbs

    def component(self, _: Token, *names: Token) -> _Subject:
        whole = names[0] if len(names) == 1 else None
        return _Subject(None if whole is None else self.signal(whole, None), " ".join(names), self.at(names[0]))

    def spoken_of(self, expression: ParsedExpression) -> _Subject:
        return _Subject(expression, str(expression.node), expression.location)

    def be(self, word: Token, comparative: Token, right: ParsedExpression) -> _Predicate:
        return _Predicate(lambda of: Response(self.worded(of.expression(word), word, comparative, right), None))

    def be_between(self, word: Token, _: Token, low: ParsedExpression, high: ParsedExpression) -> _Predicate:
        return _Predicate(lambda of: Response(self.worded_between(of.expression(word), word, word, low, high), None))

    def hold(self, word: Token) -> _Predicate:
        return _Predicate(lambda of: Response(of.expression(word), None))

    def occur(self, word: Token, comparative: Token, *times: Any) -> _Predicate:
        symbol: Any = _comparative(comparative)
        if symbol in ("=", "!="):
            advice = "write at least, at most, more than or fewer than"
            raise RequirementError(f"occur {comparative}", self.at(comparative), advice)
        count = {"ONCE": 1, "TWICE": 2}.get(times[0].type) if isinstance(times[0], Token) else None
        limit = Number(float(times[0].natural("the number of times") if count is None else count))

        def respond(of: _Subject) -> Response:
            body = of.expression(word)
            is_counter = isinstance(body.node, Signal)  # `collisions`: a number that counts itself
            if is_counter and "info" in of.text.split("."):
                raise RequirementError(
                    f"{of.text} may be the number of one step or a total",
                    of.location,
                    f"write {of.text} > 0 shall occur ..., or {of.text} shall always be at most ...",
                )
            term = body.node if is_counter else Aggregate("count", self.state(word, body), self.at(word))
            held = self.build(Compare(symbol, cast(Any, term), limit), self.at(word), body)
            return Response(held, "always" if "<" in symbol else "eventually", counts=True)

        return _Predicate(respond)

    def state(self, word: Token, body: ParsedExpression) -> Any:
        if not is_state_formula(found := self.boolean(word, body)):
            raise RequirementError(f"{word} counts states, and this has a temporal operator in it", body.location)
        return found

    def satisfy(self, word: Token, body: ParsedExpression) -> _Predicate:
        quantifier = {"REACH": "eventually", "AVOID": "never", "KEEP": "always"}.get(word.type)

        def respond(of: _Subject) -> Response:
            if of.known is not None and not isinstance(of.known.node, Signal):
                advice = "write a name before shall, as in: the system shall always satisfy ..."
                raise RequirementError(f"{of.text} cannot {word} anything", of.location, advice)
            return Response(body, quantifier)

        return _Predicate(respond)

    # parts

    def clause(self, word: Token, body: ParsedExpression) -> SentencePart:
        location = self.at(word)
        if word.type in ("BEFORE", "UNTIL"):
            return SentencePart("window", Window(word.type.lower(), None, body), location)
        kind = "scope" if word.type in ("WHILE", "AFTER") else "condition"
        return SentencePart(kind, (word.type.lower(), body), location)

    def quantifier(self, word: Token) -> SentencePart:
        return SentencePart("timing", word.type.lower(), self.at(word))

    def window(self, word: Token, steps: ParsedNumber, _: Token) -> SentencePart:
        bound = Bound(0, steps.natural("the number of steps"), steps.location)
        name = {"WITHIN_FIRST": "within", "FOR_FIRST": "for", "AFTER": "after"}[word.type]
        return SentencePart("window", Window(name, bound, None), self.at(word))

    def step_range(self, word: Token, lower: ParsedNumber, _: Token, upper: ParsedNumber) -> SentencePart:
        return SentencePart("window", Window("from", self.between(lower, upper), None), self.at(word))

    def later(self, steps: ParsedNumber, _: Token) -> SentencePart:
        k = steps.natural("the number of steps")
        return SentencePart("window", Window("later", Bound(k, k, steps.location), None), steps.location)

    def probable(self, word: Token, bounds: ParsedBounds) -> SentencePart:
        return SentencePart("probability", bounds, self.at(word))

    def likelihood_bound(self, word: Token, end: ParsedNumber) -> ParsedBounds:
        symbol = _comparative(word) if word.type == "COMPARATIVE" else self.threshold(word, end).symbol
        return ParsedBounds(symbol, (end,), self.at(word))

    def likelihood_range(self, word: Token, lower: ParsedNumber, upper: ParsedNumber) -> ParsedBounds:
        return ParsedBounds("in", (lower, upper), self.at(word))

    def percentage(self, digits: Token, percent: Token | None) -> ParsedNumber:
        return ParsedNumber(_fraction(digits) if percent else str(digits), self.at(digits))

    def almost_surely(self, word: Token) -> SentencePart:
        at = self.at(word)
        return SentencePart("probability", ParsedBounds(">=", (ParsedNumber("1", at),), at), at)

    def share_of_episodes(self, words: Token) -> SentencePart:
        bound, digits = re.fullmatch(r"in\s+(\w+\s+\w+)\s+([0-9.]+).*", words, re.I | re.S).groups()  # type: ignore[union-attr]
        end = ParsedNumber(_fraction(digits), self.at(words))
        return SentencePart("probability", ParsedBounds(_comparative(bound), (end,), self.at(words)), self.at(words))

    def sureness(self, word: Token, value: ParsedNumber | None = None) -> SentencePart:
        digits = re.search(r"[0-9.]+", word)
        said = value or ParsedNumber(_fraction(digits[0] if digits else ""), self.at(word))
        return SentencePart("confidence", said.probability("the confidence"), self.at(word))

    def share_of_family(self, words: Token) -> SentencePart:
        return SentencePart("environments", self.share_of_environments(words), self.at(words))

    # comparisons in words, also inside of formulas

    def worded(self, left: ParsedExpression, _: Token, word: Token, right: ParsedExpression) -> ParsedExpression:
        return self.compare(left, Token("RELATION", _comparative(word), *_place(word)), right)

    def worded_between(
        self, left: ParsedExpression, _: Token, word: Token, low: ParsedExpression, high: ParsedExpression
    ) -> ParsedExpression:
        ends = [
            self.compare(left, Token("RELATION", symbol, *_place(word)), end)
            for symbol, end in ((">=", low), ("<=", high))
        ]
        return self.connect("&", "and", *ends)

    # the formula of a sentence

    def formula_of(self, response: Response, parts: dict[str, SentencePart], at: SourceLocation) -> ParsedExpression:
        """Return the formula: the response under its timing, its condition, and its scope `after`."""
        quantifier = self.quantifier_of(response, parts.get("timing"))
        window: Window | None = parts["window"].value if "window" in parts else None
        where = parts["window"].location if "window" in parts else at
        scope: tuple[str, Any] = parts["scope"].value if "scope" in parts else ("", None)
        word, states = scope
        begins = word or ("condition" in parts and parts["condition"].value[0])
        if response.counts and (begins or (window and window.word in ("from", "later"))):
            raise RequirementError(
                f"occurrences are counted from the first state of an episode, not {begins or 'from a later step on'}",
                at,
                "leave that out: x shall occur at most twice; or count in one formula: (a and x) shall occur ...",
            )
        body = self.negation(response.formula) if quantifier == "never" else response.formula
        if word == "while":
            some = quantifier == "eventually" or (quantifier is None and window and window.word in SOME)
            body = self.connect("&" if some else "=>", "while", states, body)
        found = self.timed(body, quantifier, window, where)
        if "condition" in parts:
            found = self.conditioned(found, *parts["condition"].value)
        if word == "after":
            began = self.connect("&", "after", states, found)
            found = self.over_time("W", None, self.negation(states), began)
        return found

    def quantifier_of(self, response: Response, stated: SentencePart | None) -> str | None:
        if stated is None:
            return response.quantifier
        if response.quantifier not in (None, stated.value):
            problem = f"the verb says {response.quantifier}, and the sentence {stated.value}"
            raise RequirementError(problem, stated.location, "leave out the second, or use satisfy")
        if response.quantifier == "never":
            advice = "write avoid φ, or never satisfy φ"
            raise RequirementError("never avoid is a double negation", stated.location, advice)
        return cast(str, stated.value)

    def timed(
        self, body: ParsedExpression, quantifier: str | None, window: Window | None, at: SourceLocation
    ) -> ParsedExpression:
        """Return the formula of a response, which is negated already for `never`, under a quantifier and a window."""
        word, bound, until = window or Window("", None, None)
        match quantifier, word:
            case "immediately", "":
                return body
            case "next", "":
                return self.over_time("X", None, body)
            case "finally", "":
                return self.over_time("F", None, self.connect("&", "finally", ParsedExpression(END, at), body))
            case None, "after":  # not for so long, and then at once
                first = Bound(0, cast(Bound, bound).upper + 1, at)
                none = self.over_time("G", bound, self.negation(body))
                return self.connect("&", "after", none, self.over_time("F", first, body))
            case ("always" | "never", "" | "for" | "from") | ("never", "within") | (None, "for"):
                return self.over_time("G", bound, body)
            case ("eventually", "" | "within" | "from") | (None, "within" | "later"):
                return self.over_time("F", bound, body)
            case (None | "always" | "never", "until") | ("always" | "never", "before"):
                return self.over_time("W", None, body, until)
            case None, "before":
                return self.over_time("R", None, body, self.negation(cast(ParsedExpression, until)))
            case "eventually", "before":
                not_yet = self.negation(cast(ParsedExpression, until))
                return self.over_time("U", None, not_yet, self.connect("&", word, body, not_yet))
            case None, "":
                raise RequirementError("a sentence without a timing", at, TIMINGS)
        problem = f"{word!r} without always, never or eventually" if quantifier is None else f"{quantifier} and {word}"
        raise RequirementError(f"{problem} in one timing", at, TIMINGS)

    def conditioned(self, found: ParsedExpression, word: str, condition: ParsedExpression) -> ParsedExpression:
        """Return the formula for every state with the condition; for `when`, those in which it begins to hold."""
        now = self.connect("=>", word, condition, found)
        if word == "whenever":
            return self.over_time("G", None, now)
        begins = self.connect("&", word, self.negation(condition), self.over_time("X", None, condition))
        later = self.connect("=>", word, begins, self.over_time("X", None, found))
        return self.connect("&", word, now, self.over_time("G", None, later))

    def over_time(self, operator: Any, bound: Bound | None, *operands: Any) -> ParsedExpression:
        node = Temporal(operator, tuple(self.boolean(operator, operand) for operand in operands), bound)
        return self.build(node, operands[0].location, *operands)

    def negation(self, body: ParsedExpression) -> ParsedExpression:
        return self.build(Not(self.boolean("not", body)), body.location, body)


class _Subject(NamedTuple):
    """What stands before `shall`: an expression, or the name of a component."""

    known: ParsedExpression | None
    text: str
    location: SourceLocation

    def expression(self, word: Token) -> ParsedExpression:
        if self.known is None:
            advice = "write a signal or a formula before shall, or: the system shall always satisfy ..."
            raise RequirementError(f"{self.text} is no signal that could {word}", self.location, advice)
        return self.known


class _Predicate(NamedTuple):
    respond: Any  # Callable[[_Subject], Response]


def _by_kind(parts: list[SentencePart]) -> dict[str, SentencePart]:
    found: dict[str, SentencePart] = {}
    for part in parts:
        if part.kind in found:
            advice = "split the sentence into several"
            raise RequirementError(f"a second {part.kind} in one sentence", part.location, advice)
        found[part.kind] = part
    return found


def _comparative(words: str) -> str:
    return COMPARATIVES[" ".join(words.lower().split())]


def _fraction(digits: str) -> str:
    """Return a percentage as a fraction: 98 -> 0.98."""
    try:
        return repr(round(float(digits) / 100.0, 12))
    except ValueError:
        return "nan"


def _place(word: Token) -> tuple[Any, Any, Any]:
    return word.start_pos, word.line, word.column
