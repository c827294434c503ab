"""Syntax errors of the requirement language: what may stand in place of the error, and other tools' spellings."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from lark import Lark, Token, UnexpectedToken
from lark.exceptions import UnexpectedInput

from psyco._src.core.errors import RequirementError, SourceLocation

RESERVED_LETTERS = "PRISM reserves the letters A C E F G I P R S U W X"

# How to say what may follow: a phrase, the terminals that call for it, and further terminals that it covers.
OPERAND = {"NAME", "NUMBER", "STRING", "TRUTH", "FUNCTION", "AGGREGATE", "QUANTIFIER", "MINUS", "LPAR"}
_PROPERTY = {"ASK_PATH", "ASK_REWARD", "R", "CVAR", "STEADY", "CONF", "FOR_EACH"}
_PROPERTIES = "P>=p [ ... ], R{x}<=r [ C ]"
_OVER = "[ C ], [ C<=k ], [ I=k ], [ F φ ] or [ S ]"
Phrases: TypeAlias = tuple[tuple[str, set[str], set[str]], ...]
EXPECTED: Phrases = (
    (
        f"{_PROPERTIES}, Rmax=? [ C ] or a name in quotes",
        {"PROB", "STRING"},
        _PROPERTY | {"$END", "SEMICOLON"},
    ),
    (f"{_PROPERTIES} or Rmax=? [ C ]", {"PROB"}, _PROPERTY),
    (_OVER, {"INSTANT", "PREFIX"}, OPERAND | {"CONF", "STEADY", "NOT"}),
    ("a formula", {"PREFIX", "NAME"}, OPERAND | {"NOT", "RELATION", "LSQB"}),
    ("a number or a signal", {"NAME"}, OPERAND),
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
    ("[", {"LSQB"}, {"ENVIRONMENTS"}),
    ("]", {"RSQB"}, set()),
    ("{", {"LBRACE"}, set()),
    ("}", {"RBRACE"}, set()),
    ("the end of the text", {"$END"}, set()),
)
_OTHER_SPELLINGS = {"==": "=", "&&": "&", "||": "|", "->": "=>"}


def syntax_error(
    text: str, start: str, error: UnexpectedInput, lark: Lark, phrases: Phrases, source: str = ""
) -> RequirementError:
    """Return the error for a text that `lark` refuses.

    Args:
        text: the text.
        start: the start rule.
        error: of `lark`.
        lark: the parser.
        phrases: name what may stand in place of the error.
        source: the text whose lines are shown, if not this one.
    """
    at, source = error.pos_in_stream or 0, source or text
    location, other = _location(source, error.line, error.column), _other_spelling(text, at)
    if isinstance(error, UnexpectedToken):
        accepts = error.accepts or set()
        expected = f"expected {_expected(error.accepts or error.expected, phrases)}"
        if error.token.type == "$END":
            written = text.rstrip().split("\n")
            end = _location(source, len(written), len(written[-1]) + 1)
            return RequirementError("the text ends too early", end, expected)
        if phrases is EXPECTED:  # of formulas
            other = other or _other_prism(error.token, accepts)
            expected = _bare_formula(error.token, accepts) + expected
        advice = other or expected
        return RequirementError(f"unexpected {error.token}", location, advice)
    if text[at] == '"':
        advice = 'names and labels end with " on the same line'
        return RequirementError("a quote that is not closed", location, advice)
    try:  # the lexer does not know what the parser expects: parse the text up to here
        lark.parse(text[:at], start=start)
        expected = "expected an operator or the end of the text"
    except UnexpectedToken as before:
        expected = f"expected {_expected(before.accepts or before.expected, phrases)}"
    return RequirementError(f"unexpected character {text[at]!r}", location, other or expected)


def _location(text: str, line: int, column: int) -> SourceLocation:
    return SourceLocation(line, column, text.split("\n")[line - 1])


def _expected(terminals: Iterable[str], phrases: Phrases) -> str:
    left, found = set(terminals), []
    for phrase, calls_for_it, covers in phrases:
        if calls_for_it <= left:
            left -= calls_for_it | covers
            found.append(phrase)
    if left:
        found.append("an operator")
    return " or ".join(found)


def _other_spelling(text: str, at: int) -> str:
    """Return advice for an operator of another language."""
    around = text[at : at + 2], text[max(at - 1, 0) : at + 1]
    written = next((spelling for spelling in _OTHER_SPELLINGS if spelling in around), None)
    return f"PRISM writes {_OTHER_SPELLINGS[written]} for {written}" if written else ""


# PRISM's other starts of a property, and why they are refused.
_OTHER_STARTS = {
    "const": "constants are not known here: write the number where it is needed",
    "label": "labels are the Boolean signals of a domain: write the state formula where it is needed",
    "filter": "a requirement is about episodes, from their first state on: other states cannot be filtered",
    "multi": "properties in one text are required together: separate them by ;",
    "A": "episodes cannot show what all paths do: write P>=p [ ... ], with p below 1",
    "E": "episodes cannot show what some path does: write P>=p [ ... ], with p above 0",
}
_NO_CALCULATION = "answers cannot be calculated with: ask for each by itself"


def _other_prism(token: Token, accepts: set[str]) -> str:
    """Return why PRISM syntax that this language lacks is refused."""
    if "PROB" in accepts:
        return _NO_CALCULATION if token.type == "NUMBER" else _OTHER_STARTS.get(str(token), "")
    if "NAME" in accepts and token.type in _PROPERTY | {"PROB", "INSTANT"}:
        return f"{token} cannot name a signal, nor stand inside a formula: {RESERVED_LETTERS}"
    if accepts == {"CONF"} and token.type in _PROPERTY | {"PROB"}:
        return (
            "separate constraints by ; and give each its own confidence, as in P>=p [ ... ] & C>=c; P>=q [ ... ] & C>=c"
        )
    if "NUMBER" in accepts and "NAME" not in accepts and token.type in ("NAME", "LPAR"):
        return "constants and expressions are not known here: write the number itself"
    if token.type == "IN" and "ENVIRONMENTS" in accepts:
        return "a share of a family is written in 95% of environments, between the bound and the formula"
    if token.type == "LBRACE" and "RSQB" in accepts:
        return _OTHER_STARTS["filter"]
    if token.type in ("PLUS", "MINUS", "TIMES", "DIVIDE") and "SEMICOLON" in accepts:
        return _NO_CALCULATION
    return ""


def _bare_formula(token: Token, accepts: set[str]) -> str:
    is_formula_start = token.type in OPERAND | {"PREFIX", "NOT"}
    return "a formula stands inside P>=p [ ... ]; " if is_formula_start and "PROB" in accepts else ""
