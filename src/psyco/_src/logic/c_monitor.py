"""C99 source of a runtime monitor: transition tables of each formula, and the evaluation of its state formulas.

All tables are computed here: the C code looks up transitions, and compares like `scalar_eval` does on float32.
"""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from psyco._src.core.errors import RequirementError
from psyco._src.logic.anticipation import MAX_PROPOSITIONS, Anticipation, ProgressState
from psyco._src.logic.ast import (
    Aggregate,
    Arith,
    Bool,
    Call,
    Compare,
    Connective,
    Formula,
    Label,
    Minus,
    Not,
    Requirement,
    Signal,
    Term,
)
from psyco._src.logic.exact_constants import evaluated_aggregates, exact_comparison
from psyco._src.logic.quantifiers import refuse_quantifiers
from psyco._src.logic.scalar_eval import STEP, StepEvaluator, constant_value
from psyco._src.logic.validate import check_precision

MAX_TABLE_ENTRIES = 65_536  # of one formula, of two bytes each
NEVER = 65_535  # steps until a verdict that is impossible

COMMENT_CHARACTERS = frozenset(map(chr, range(ord("!"), ord("~") + 1))) - frozenset("*?\\")

# Keywords, and lower-case names that the headers of the standard library define.
RESERVED_C_NAMES = frozenset(
    """auto break case char const continue default do double else enum extern float for goto if inline int long register
    restrict return short signed sizeof static struct switch typedef union unsigned void volatile while
    bool complex errno imaginary math_errhandling stderr stdin stdout""".split()  # noqa: SIM905
)


class MonitorSource(NamedTuple):
    """The C code of a monitor."""

    header: str
    source: str
    signals: tuple[tuple[str, str], ...]  # for each value of `psyco_signals`, the signal and its name in C


def c_monitor(requirement: Requirement, *, horizon: int | None = None, counters: Collection[str] = ()) -> MonitorSource:
    """Return C code that does what `Monitor` does, with signals in single precision.

    Args:
        requirement: its constraints on probabilities are monitored; no single episode decides about an expected value.
        horizon: the maximum number of steps of an episode.
        counters: signals that never fall.
    """
    refuse_quantifiers(requirement, "the exported monitor")
    check_precision(requirement, {})
    by_constraint = {b.constraint: b.formula for b in reversed(requirement.probability_bounds)}
    formulas = [by_constraint[i] for i in sorted(by_constraint)]
    names = [requirement.constraints[i].name or f"constraint {i + 1}" for i in sorted(by_constraint)]
    tables = [_table(formula, horizon, counters) for formula in formulas]
    writer = _Writer(formulas)
    letters = [[writer.predicate(f) for f in (*t.future.atoms, *t.future.latches)] for t in tables]
    return MonitorSource(
        _header(writer, list(zip(names, map(str, formulas), strict=True)), horizon),
        _source(writer, tables, letters, horizon),
        tuple((str(signal), writer.names[signal]) for signal in writer.signals),
    )


# ---- tables ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _FormulaTable:
    """All progress states of one formula, and their transitions."""

    future: Anticipation
    letters: int
    states: list[ProgressState]
    next: list[int]  # [states x letters]
    holds: list[int]  # [states x letters] 1 if the formula holds when the letter is that of the last state


def _table(formula: Formula, horizon: int | None, counters: Collection[str]) -> _FormulaTable:
    future = Anticipation(formula, horizon, counters)
    if not future.enumerable:
        raise RequirementError(
            f"too large for C: {len(future.atoms)} state formulas in {formula!s:.80}; at most {MAX_PROPOSITIONS} are",
            advice="split the constraint into several",
        )
    letters = 2 ** (len(future.atoms) + len(future.latches))
    states, numbers = [future.start], {future.start: 0}
    table = _FormulaTable(future, letters, states, [], [])
    for state in states:  # the list grows meanwhile
        row, finals = [0] * letters, [0] * letters
        if max(state.to_true, state.to_false) < math.inf:  # else it is decided, and has no successors
            for letter in future.possible_letters(state.settled, end=False):
                after = future.with_distances(future.step(state, letter))
                if after not in numbers:
                    numbers[after] = len(states)
                    states.append(after)
                row[_number(letter)] = numbers[after]
            for letter in future.possible_letters(state.settled, end=True):
                finals[_number(letter)] = int(future.holds_at_end(state, letter))
        table.next.extend(row)
        table.holds.extend(finals)
        if len(states) * letters > MAX_TABLE_ENTRIES:
            raise RequirementError(
                f"too large for C: {formula!s:.80} has more than {MAX_TABLE_ENTRIES // letters:,} states",
                advice="lower the bounds of nested temporal operators, or monitor it in Python",
            )
    return table


def _number(letter: Iterable[bool]) -> int:
    return sum(2**i for i, holds in enumerate(letter) if holds)


# ---- state formulas --------------------------------------------------------------------------------------------------

Kind = Literal["float", "double"]


class _Value(NamedTuple):
    """A C expression; a constant takes the precision of the other operand, as in NumPy."""

    text: str
    kind: Kind
    constant: float | None = None

    def as_kind(self, kind: Kind) -> str:
        return self.text if self.constant is None else c_literal(self.constant, kind)


class _Writer:
    """Writes state formulas as C, and collects the helper functions they need."""

    def __init__(self, formulas: Sequence[Formula]) -> None:
        self.aggregates = evaluated_aggregates(formulas)
        self.signals = StepEvaluator(formulas).signals
        self.names = _c_names(self.signals)
        self.helpers: dict[str, None] = {}

    def predicate(self, formula: Formula) -> str:
        """Write a state formula."""
        match exact_comparison(formula) if isinstance(formula, Compare) else formula:
            case Bool(value):
                return str(int(value))
            case Label("end"):
                return "(end != 0)"
            case Label(name):
                return self.predicate(Signal(name))
            case Signal() as signal:
                return f"({self.value(signal).text} != 0)"
            case Compare(operator, left, right):
                one, two, _ = self._pair(left, right)
                return f"({one} {'==' if operator == '=' else operator} {two})"
            case Not(body):
                return f"!{self.predicate(body)}"
            case Connective("=>", (left, right)):
                return f"(!{self.predicate(left)} || {self.predicate(right)})"
            case Connective(operator, operands):
                return f"({CONNECTIVES[operator].join(map(self.predicate, operands))})"
        raise TypeError(f"not a state formula: {formula}")

    def value(self, term: Term) -> _Value:
        """Write a term; float or double as NumPy computes it from float32 signals."""
        if (constant := constant_value(term)) is not None:
            return _Value(c_literal(constant, "double"), "double", constant)
        match term:
            case Signal() if term == STEP:
                return _Value("(double)monitor->step", "double")
            case Signal():
                return _Value(f"signals->{self.names[term]}", "float")
            case Aggregate("mean"):
                return _Value(f"({self._total(term)} / (monitor->step + 1.0))", "double")
            case Aggregate("count" | "sum"):
                return _Value(self._total(term), "double")
            case Aggregate(_, body):
                kind = self.value(body).kind
                return _Value(f"({kind}){self._total(term)}", kind)
            case Minus(body):
                inner = self.value(body)
                return _Value(f"(-{inner.text})", inner.kind)
            case Arith("/", left, right):
                return self._called("divided", left, right)
            case Arith(operator, left, right):
                one, two, kind = self._pair(left, right)
                return _Value(f"({one} {operator} {two})", kind)
            case Call("abs", (argument,)):
                inner = self.value(argument)
                if inner.kind == "float":
                    return _Value(f"fabsf({inner.text})", "float")
                self.helpers["absolute"] = None
                return _Value(f"absolute({inner.text})", "double")
            case Call(_, (argument,)):
                return self.value(argument)
            case Call(function, (*others, last)):
                helper = "least" if function == "min" else "most"
                return self._called(helper, Call(function, tuple(others)), last)
        raise TypeError(f"not a term: {term}")

    def fold(self, aggregate: Aggregate) -> str:
        """Write the update of an aggregate in a state."""
        total = self._total(aggregate)
        match aggregate:
            case Aggregate("count", body):
                return f"{total} += {self.predicate(body)} ? 1.0 : 0.0;"
            case Aggregate("sum" | "mean", body):
                return f"{total} += {self.value(body).as_kind('double')};"
            case Aggregate(function, body):
                self.helpers[f"{function}_double"] = None
                return f"{total} = {function}_double({total}, {self.value(body).as_kind('double')});"

    def _total(self, aggregate: Aggregate) -> str:
        return f"monitor->total[{self.aggregates.index(aggregate)}]"

    def _called(self, helper: str, left: Term, right: Term) -> _Value:
        one, two, kind = self._pair(left, right)
        self.helpers[f"{helper}_{kind}"] = None
        return _Value(f"{helper}_{kind}({one}, {two})", kind)

    def _pair(self, left: Term, right: Term) -> tuple[str, str, Kind]:
        """Write two operands in their common precision."""
        one, two = self.value(left), self.value(right)
        kinds = {operand.kind for operand in (one, two) if operand.constant is None}
        kind: Kind = "float" if kinds == {"float"} else "double"
        return one.as_kind(kind), two.as_kind(kind), kind


CONNECTIVES = {"&": " && ", "|": " || ", "<=>": " == "}


def c_literal(value: float, kind: Kind) -> str:
    """Write a number so that C reads exactly this float or double."""
    with np.errstate(over="ignore"):  # a number too large for a float becomes infinity
        number = np.float32(value) if kind == "float" else np.float64(value)
    if not np.isfinite(number):
        return "NAN" if np.isnan(number) else ("INFINITY" if number > 0 else "(-INFINITY)")
    text = repr(float(value)) if kind == "double" else f"{np.format_float_scientific(number)}f"
    return f"({text})" if number < 0 else text


def _c_names(signals: Sequence[Signal]) -> dict[Signal, str]:
    """Return valid C names of the struct members: `info.cost` is `info_cost`."""
    names: dict[str, str] = {}
    for signal in signals:
        if signal.name not in names:
            name = re.sub(r"\W", "_", signal.name, flags=re.ASCII)
            if name[0].isdigit() or name[0] == "_":  # names that start with _ are reserved
                name = f"x{name}"
            if name.isupper():  # like a macro
                name += "_"
            while name in RESERVED_C_NAMES or name in names.values():
                name += "_"
            names[signal.name] = name
    return {s: names[s.name] + ("" if s.index is None else f"[{s.index}]") for s in signals}


HELPERS = {
    "absolute": "static double absolute(double x)\n{\n    return x < 0.0 ? -x : x;\n}\n",
    "divided": (
        "/* A zero has no sign. */\n"
        "static {kind} divided_{kind}({kind} x, {kind} y)\n{{\n"
        "    if (y != 0)\n        return x / y;\n"
        "    return x > 0 ? ({kind})INFINITY : x < 0 ? ({kind})-INFINITY : ({kind})NAN;\n}}\n"
    ),
    "least": "static {kind} least_{kind}({kind} x, {kind} y)\n{{\n    return x < y || x != x ? x : y;\n}}\n",
    "most": "static {kind} most_{kind}({kind} x, {kind} y)\n{{\n    return x > y || x != x ? x : y;\n}}\n",
}


def _helper(name: str) -> str:
    stem, _, kind = name.partition("_")
    return HELPERS[stem].format(kind=kind) if kind else HELPERS[stem]


# ---- files -----------------------------------------------------------------------------------------------------------


def _header(writer: _Writer, formulas: Sequence[tuple[str, str]], horizon: int | None) -> str:
    lines = (f"   {i}: {c_comment(name)}: {c_comment(text)}" for i, (name, text) in enumerate(formulas))
    listed = "\n".join(lines)
    return f"""
/* ---- the monitor ----

   An episode is monitored against these formulas, one per constraint:
{listed}
   Signals are single precision. */

#define PSYCO_CONSTRAINTS {len(formulas)}
#define PSYCO_HORIZON {horizon or 0} /* maximum number of steps of an episode; 0: no limit */

/* The verdict about the episode and a constraint. */
enum {{
    PSYCO_OPEN = 0,
    PSYCO_SATISFIED = 1, /* for every continuation */
    PSYCO_VIOLATED = 2   /* for every continuation */
}};

/* The signals of one state; Booleans are 0 or 1. */
typedef struct {{
{_members(writer)}
}} psyco_signals;

typedef struct {{
    int32_t step;                        /* index of the last state; -1 before the first */
    int32_t decided[PSYCO_CONSTRAINTS];  /* the step at which the outlook ceased to be open */
    uint16_t state[PSYCO_CONSTRAINTS];   /* of the formula's automaton */
    uint8_t outlook[PSYCO_CONSTRAINTS];
    uint8_t over;                        /* 1 after the last state of the episode */
    double total[{max(1, len(writer.aggregates))}];                     /* of count(...), sum(...) and so on */
}} psyco_monitor;

/* Begin an episode. */
void psyco_start(psyco_monitor *monitor);

/* Read the next state; the first is state 0, and `end` is nonzero in the last. Returns 0; or -1, without any effect, if
   a signal is not finite or the episode is over already. */
int psyco_update(psyco_monitor *monitor, const psyco_signals *signals, int end);
"""


def _members(writer: _Writer) -> str:
    sizes: dict[str, int | None] = {}
    for signal in writer.signals:
        name = writer.names[signal].partition("[")[0]
        index = signal.index
        sizes[name] = None if index is None else max((sizes.get(name) or 0), index + 1)
    members = [f"    float {name}{'' if size is None else f'[{size}]'};" for name, size in sizes.items()]
    return "\n".join(members or ["    float unused; /* no formula has a signal */"])


def _source(
    writer: _Writer, tables: Sequence[_FormulaTable], letters: Sequence[Sequence[str]], horizon: int | None
) -> str:
    folds = [f"    {writer.fold(aggregate)}" for aggregate in writer.aggregates]
    left = "NEVER - 1" if horizon is None else "PSYCO_HORIZON - monitor->step"
    checks = " ||\n        ".join(f"!finite_float(signals->{writer.names[s]})" for s in writer.signals)
    check = f"    if ({checks})\n        return -1;\n" if checks else "    (void)signals;\n"
    finite = "static int finite_float(float x)\n{\n    return x - x == 0.0f;\n}\n" if checks else ""
    return "\n".join(
        [
            "/* ---- the monitor ---- */\n",
            f"#define NEVER {NEVER}\n",
            *(_arrays(i, table) for i, table in enumerate(tables)),
            finite,
            *map(_helper, writer.helpers),
            DECIDE,
            _start(writer, tables),
            "int psyco_update(psyco_monitor *monitor, const psyco_signals *signals, int end)\n{",
            "    uint32_t letter;\n    int32_t left;\n",
            f"    if (monitor->over)\n        return -1;\n{check}",
            "    monitor->step++;",
            "    end = end || (PSYCO_HORIZON && monitor->step == PSYCO_HORIZON);",
            "    monitor->over = (uint8_t)(end != 0);",
            f"    left = {left};\n    if (left >= NEVER)\n        left = NEVER - 1;",
            *folds,
            *map(_decide_call, range(len(tables)), tables, letters),
            "    return 0;\n}\n",
        ]
    )


def _decide_call(i: int, table: _FormulaTable, predicates: Sequence[str]) -> str:
    bits = [f"    letter {'|=' if k else '='} {p} ? {2**k}u : 0u;" for k, p in enumerate(predicates)]
    arrays = f"next_{i}, holds_{i}, to_true_{i}, to_false_{i}"
    return "\n".join([*bits, f"    decide(monitor, {i}, {table.letters}u, letter, {arrays}, left, end);"])


DECIDE = """\
/* Update a constraint with the letter of one more state. */
static void decide(psyco_monitor *monitor, int i, uint32_t letters, uint32_t letter, const uint16_t *next,
                   const uint8_t *holds, const uint16_t *to_true, const uint16_t *to_false, int32_t left, int end)
{
    uint32_t at = monitor->state[i] * letters + letter;
    if (monitor->outlook[i] != PSYCO_OPEN)
        return;
    if (end) {
        monitor->outlook[i] = holds[at] ? PSYCO_SATISFIED : PSYCO_VIOLATED;
    } else {
        monitor->state[i] = next[at];
        if (to_false[next[at]] > left)
            monitor->outlook[i] = PSYCO_SATISFIED;
        else if (to_true[next[at]] > left)
            monitor->outlook[i] = PSYCO_VIOLATED;
    }
    if (monitor->outlook[i] != PSYCO_OPEN)
        monitor->decided[i] = monitor->step;
}
"""


def _start(writer: _Writer, tables: Sequence[_FormulaTable]) -> str:
    initial = {"least": "INFINITY", "most": "-INFINITY"}
    lines = ["    monitor->step = -1;", "    monitor->over = 0;"]
    for i, table in enumerate(tables):
        left = NEVER - 1 if table.future.horizon is None else table.future.horizon + 1
        first = table.future.start
        outlook = "SATISFIED" if first.to_false > left else "VIOLATED" if first.to_true > left else "OPEN"
        lines += [
            f"    monitor->state[{i}] = 0;",
            f"    monitor->outlook[{i}] = PSYCO_{outlook};",
            f"    monitor->decided[{i}] = -1;",
        ]
    for i, aggregate in enumerate(writer.aggregates):
        lines.append(f"    monitor->total[{i}] = {initial.get(aggregate.function, '0.0')};")
    body = "\n".join(lines)
    return f"void psyco_start(psyco_monitor *monitor)\n{{\n{body}\n}}\n"


def _arrays(i: int, table: _FormulaTable) -> str:
    def steps(of: Callable[[ProgressState], float]) -> list[int]:
        return [int(min(of(state), NEVER)) for state in table.states]

    return "\n".join(
        [
            _array("uint16_t", f"next_{i}", table.next),
            _array("uint8_t", f"holds_{i}", table.holds),
            _array("uint16_t", f"to_true_{i}", steps(lambda state: state.to_true)),
            _array("uint16_t", f"to_false_{i}", steps(lambda state: state.to_false)),
        ]
    )


def _array(kind: str, name: str, numbers: Sequence[object]) -> str:
    return c_array(kind, f"{name}[{len(numbers)}]", list(map(str, numbers)))


def c_array(kind: str, name: str, numbers: Sequence[str]) -> str:
    """Write a constant array with wrapped lines."""
    lines = textwrap.fill(", ".join(numbers), 100, initial_indent="    ", subsequent_indent="    ")
    return f"static const {kind} {name} = {{\n{lines}\n}};\n"


def c_comment(text: str) -> str:
    """Make a text safe for a C comment, character by character: no delimiter, trigraph, continued line or newline."""
    return re.sub(" +", " ", "".join(map(_comment_character, text)))


def _comment_character(character: str) -> str:
    if character == "*":
        return " * "  # "*/" and "/*" need a neighbour
    if character.isspace():
        return " "
    return character if character in COMMENT_CHARACTERS else "_"
