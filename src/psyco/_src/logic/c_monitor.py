"""The monitor of a running episode as C99: tables of what can become of each formula, and the states that it sees.

Everything is computed here: C looks up what comes next, and evaluates comparisons as `stepwise` does on float32.
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
from psyco._src.logic.anticipation import PROPOSITIONS, Anticipation, Situation
from psyco._src.logic.ast import (
    Aggregate,
    And,
    Arith,
    Bool,
    Call,
    Compare,
    Formula,
    Iff,
    Implies,
    Label,
    Minus,
    Not,
    Or,
    Requirement,
    Signal,
    Term,
    aggregates,
    walk,
)
from psyco._src.logic.scalar_eval import STEP, StepEvaluator
from psyco._src.logic.validate import END

LARGEST = 65_536  # entries of the table of one formula, of two bytes each
NEVER = 65_535  # steps until something that does not happen

# Keywords, and what the headers of the standard library make of other names in lower case.
TAKEN = frozenset(
    """auto break case char const continue default do double else enum extern float for goto if inline int long register
    restrict return short signed sizeof static struct switch typedef union unsigned void volatile while
    bool complex errno imaginary math_errhandling stderr stdin stdout""".split()  # noqa: SIM905
)


class MonitorSource(NamedTuple):
    """C of a monitor: what goes into the header, and what into the source."""

    header: str
    source: str
    # What each value of `psyco_signals` is, and its name in C, in their order.
    signals: tuple[tuple[str, str], ...]


def c_monitor(
    requirement: Requirement, *, horizon: int | None = None, counters: Collection[str] = ()
) -> MonitorSource:
    """C that says of a running episode what `Monitor` says, with signals in single precision.

    Args:
        requirement: its bounds on probabilities are watched; about an expected value no single episode decides.
        horizon: the longest episode, in steps.
        counters: signals that never fall.
    """
    formulas = list({d.constraint: d.formula for d in reversed(requirement.demands)}.items())
    formulas.sort(key=lambda pair: pair[0])
    tables = [_table(formula, horizon, counters) for _, formula in formulas]
    writer = _Writer([formula for _, formula in formulas])
    letters = [[writer.truth(each) for each in (*t.future.atoms, *t.future.latches)] for t in tables]
    names = [requirement.constraints[i].name or f"constraint {i + 1}" for i, _ in formulas]
    return MonitorSource(
        _header(writer, [(name, str(f)) for name, (_, f) in zip(names, formulas, strict=True)], horizon),
        _source(writer, tables, letters, horizon),
        tuple((str(signal), writer.names[signal]) for signal in writer.signals),
    )


# ---- tables ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _SituationTable:
    """All situations of one formula, and where every letter leads."""

    future: Anticipation
    situations: list[Situation]
    next: list[int]  # [situations x letters]
    holds: list[int]  # [situations x letters] 1 if the formula holds should the state be the last

    @property
    def letters(self) -> int:
        return 2 ** (len(self.future.atoms) + len(self.future.latches))


def _table(formula: Formula, horizon: int | None, counters: Collection[str]) -> _SituationTable:
    future = Anticipation(formula, horizon, counters)
    if not future.foresees:
        raise RequirementError(
            f"too large for C: {len(future.atoms)} state formulas in {formula!s:.80}; at most {PROPOSITIONS} are",
            advice="split the constraint into several",
        )
    letters = 2 ** (len(future.atoms) + len(future.latches))
    situations, numbers = [future.start], {future.start: 0}
    table = _SituationTable(future, situations, [], [])
    for situation in situations:  # which grows meanwhile
        row, finals = [0] * letters, [0] * letters
        if max(situation.to_true, situation.to_false) < math.inf:  # else nothing comes after it
            for letter in future.letters(situation.settled, end=False):
                after = future.judged(future.step(situation, letter))
                if after not in numbers:
                    numbers[after] = len(situations)
                    situations.append(after)
                row[_number(letter)] = numbers[after]
            for letter in future.letters(situation.settled, end=True):
                finals[_number(letter)] = int(future.final(situation, letter))
        table.next.extend(row)
        table.holds.extend(finals)
        if len(situations) * letters > LARGEST:
            raise RequirementError(
                f"too large for C: what is left of {formula!s:.80} can be more than {LARGEST // letters:,} things",
                advice="lower the bounds of nested temporal operators, or watch it in Python",
            )
    return table


def _number(letter: Iterable[bool]) -> int:
    return sum(2**i for i, holds in enumerate(letter) if holds)


# ---- state formulas --------------------------------------------------------------------------------------------------

Kind = Literal["float", "double"]


class _Value(NamedTuple):
    """A number in C; a constant takes the precision of what it meets, as NumPy has it."""

    text: str
    kind: Kind
    constant: float | None = None

    def as_kind(self, kind: Kind) -> str:
        return self.text if self.constant is None else c_literal(self.constant, kind)


class _Writer:
    """Writes state formulas as C, and remembers which helpers they need."""

    def __init__(self, formulas: Sequence[Formula]) -> None:
        self.aggregates = aggregates(formulas)
        self.signals = StepEvaluator(formulas).signals
        self.names = _c_names(self.signals)
        self.helpers: dict[str, None] = {}

    def truth(self, formula: Formula) -> str:
        """A state formula."""
        match formula:
            case Bool(value):
                return str(int(value))
            case Label(name) if name == END:
                return "(end != 0)"
            case Label(name):
                return self.truth(Signal(name))
            case Signal():
                return f"({self.value(formula).text} != 0)"
            case Compare(operator, left, right):
                one, two, _ = self._pair(left, right)
                return f"({one} {COMPARE.get(operator, operator)} {two})"
            case Not(body):
                return f"!{self.truth(body)}"
            case And(operands):
                return f"({' && '.join(map(self.truth, operands))})"
            case Or(operands):
                return f"({' || '.join(map(self.truth, operands))})"
            case Implies(left, right):
                return f"(!{self.truth(left)} || {self.truth(right)})"
            case Iff(left, right):
                return f"({self.truth(left)} == {self.truth(right)})"
        raise TypeError(f"not a state formula: {formula}")

    def value(self, term: Term) -> _Value:
        """A term; float or double as NumPy would have it of float32 signals."""
        if not any(isinstance(node, Signal | Aggregate) for node in walk(term)):
            constant = float(StepEvaluator([]).value(term)(()))
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
            case Call(function, (argument,)):
                return self.value(argument)
            case Call(function, (*others, last)):
                return self._called(
                    "least" if function == "min" else "most", Call(function, tuple(others)), last
                )
        raise TypeError(f"not a term: {term}")

    def fold(self, aggregate: Aggregate) -> str:
        """How a state changes an aggregate."""
        total = self._total(aggregate)
        match aggregate:
            case Aggregate("count", body):
                return f"{total} += {self.truth(body)} ? 1.0 : 0.0;"
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
        """Two numbers that meet, and the precision in which they do."""
        one, two = self.value(left), self.value(right)
        kinds = {each.kind for each in (one, two) if each.constant is None}
        kind: Kind = "float" if kinds == {"float"} else "double"
        return one.as_kind(kind), two.as_kind(kind), kind


COMPARE = {"=": "=="}


def c_literal(value: float, kind: Kind) -> str:
    """A number that C reads as this very float or double."""
    with np.errstate(over="ignore"):  # a number too large for a float is infinity there
        number = np.float32(value) if kind == "float" else np.float64(value)
    if not np.isfinite(number):
        return "NAN" if np.isnan(number) else ("INFINITY" if number > 0 else "(-INFINITY)")
    text = repr(float(value)) if kind == "double" else f"{np.format_float_scientific(number)}f"
    return f"({text})" if number < 0 else text


def _c_names(signals: Sequence[Signal]) -> dict[Signal, str]:
    """Names of members that C allows: `info.cost` is `info_cost`."""
    names: dict[str, str] = {}
    for signal in signals:
        if signal.name not in names:
            name = re.sub(r"\W", "_", signal.name, flags=re.ASCII)
            if name[0].isdigit() or name[0] == "_":  # names with _ in front belong to the compiler
                name = f"x{name}"
            if name.isupper():  # as macros are
                name += "_"
            while name in TAKEN or name in names.values():
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
    listed = "\n".join(
        f"   {i}: {c_comment(name)}: {c_comment(text)}" for i, (name, text) in enumerate(formulas)
    )
    return f"""
/* ---- the monitor ----

   An episode is watched against
{listed}
   which is what each constraint wants to happen. Signals are single precision. */

#define PSYCO_CONSTRAINTS {len(formulas)}
#define PSYCO_HORIZON {horizon or 0} /* steps of the longest episode; 0: there is no limit */

/* What is known of the episode and a constraint. */
enum {{
    PSYCO_OPEN = 0,
    PSYCO_SATISFIED = 1, /* whatever comes */
    PSYCO_VIOLATED = 2   /* whatever comes */
}};

/* The signals of one state; Booleans are 0 or 1. */
typedef struct {{
{_members(writer)}
}} psyco_signals;

typedef struct {{
    int32_t step;                        /* of the last state; -1 before the first */
    int32_t decided[PSYCO_CONSTRAINTS];  /* the step at which the outlook ceased to be open */
    uint16_t situation[PSYCO_CONSTRAINTS];
    uint8_t outlook[PSYCO_CONSTRAINTS];
    uint8_t over;                        /* the last state was that of the episode */
    double total[{max(1, len(writer.aggregates))}];                     /* of count(...), sum(...) and so on */
}} psyco_monitor;

/* Begin an episode. */
void psyco_start(psyco_monitor *monitor);

/* The next state, the first is state 0; `end` says that the episode ends in it. Returns 0; or -1, and then nothing has
   changed: a signal is not finite, or the episode is over already. */
int psyco_update(psyco_monitor *monitor, const psyco_signals *signals, int end);
"""


def _members(writer: _Writer) -> str:
    sizes: dict[str, int | None] = {}
    for signal in writer.signals:
        name = writer.names[signal].partition("[")[0]
        index = signal.index
        sizes[name] = None if index is None else max((sizes.get(name) or 0), index + 1)
    members = [f"    float {name}{'' if size is None else f'[{size}]'};" for name, size in sizes.items()]
    return "\n".join(members or ["    float unused; /* the requirement speaks of no signal */"])


def _source(
    writer: _Writer, tables: Sequence[_SituationTable], letters: Sequence[Sequence[str]], horizon: int | None
) -> str:
    folds = [writer.fold(each) for each in writer.aggregates]
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
            *(f"    {fold}" for fold in folds),
            *(
                _judged(i, table, truths)
                for i, (table, truths) in enumerate(zip(tables, letters, strict=True))
            ),
            "    return 0;\n}\n",
        ]
    )


def _judged(i: int, table: _SituationTable, truths: Sequence[str]) -> str:
    bits = [f"    letter {'|=' if k else '='} {truth} ? {2**k}u : 0u;" for k, truth in enumerate(truths)]
    arrays = f"next_{i}, holds_{i}, to_true_{i}, to_false_{i}"
    return "\n".join([*bits, f"    decide(monitor, {i}, {table.letters}u, letter, {arrays}, left, end);"])


DECIDE = """\
/* What one more state makes of a constraint. */
static void decide(psyco_monitor *monitor, int i, uint32_t letters, uint32_t letter, const uint16_t *next,
                   const uint8_t *holds, const uint16_t *to_true, const uint16_t *to_false, int32_t left, int end)
{
    uint32_t at = monitor->situation[i] * letters + letter;
    if (monitor->outlook[i] != PSYCO_OPEN)
        return;
    if (end) {
        monitor->outlook[i] = holds[at] ? PSYCO_SATISFIED : PSYCO_VIOLATED;
    } else {
        monitor->situation[i] = next[at];
        if (to_false[next[at]] > left)
            monitor->outlook[i] = PSYCO_SATISFIED;
        else if (to_true[next[at]] > left)
            monitor->outlook[i] = PSYCO_VIOLATED;
    }
    if (monitor->outlook[i] != PSYCO_OPEN)
        monitor->decided[i] = monitor->step;
}
"""


def _start(writer: _Writer, tables: Sequence[_SituationTable]) -> str:
    nothing = {"least": "INFINITY", "most": "-INFINITY"}
    totals = [
        f"    monitor->total[{i}] = {nothing.get(each.function, '0.0')};"
        for i, each in enumerate(writer.aggregates)
    ]
    lines = []
    for i, table in enumerate(tables):
        left = NEVER - 1 if table.future.horizon is None else table.future.horizon + 1
        first = table.future.start
        outlook = "SATISFIED" if first.to_false > left else "VIOLATED" if first.to_true > left else "OPEN"
        lines += [
            f"    monitor->situation[{i}] = 0;",
            f"    monitor->outlook[{i}] = PSYCO_{outlook};",
            f"    monitor->decided[{i}] = -1;",
        ]
    body = "\n".join(["    monitor->step = -1;", "    monitor->over = 0;", *lines, *totals])
    return f"void psyco_start(psyco_monitor *monitor)\n{{\n{body}\n}}\n"


def _arrays(i: int, table: _SituationTable) -> str:
    def steps(of: Callable[[Situation], float]) -> list[int]:
        return [int(min(of(each), NEVER)) for each in table.situations]

    return "\n".join(
        [
            _array("uint16_t", f"next_{i}", table.next),
            _array("uint8_t", f"holds_{i}", table.holds),
            _array("uint16_t", f"to_true_{i}", steps(lambda each: each.to_true)),
            _array("uint16_t", f"to_false_{i}", steps(lambda each: each.to_false)),
        ]
    )


def _array(kind: str, name: str, numbers: Sequence[object]) -> str:
    return c_array(kind, f"{name}[{len(numbers)}]", list(map(str, numbers)))


def c_array(kind: str, name: str, numbers: Sequence[str]) -> str:
    """A constant array, wrapped like text."""
    lines = textwrap.fill(", ".join(numbers), 100, initial_indent="    ", subsequent_indent="    ")
    return f"static const {kind} {name} = {{\n{lines}\n}};\n"


def c_comment(text: str) -> str:
    """A text that cannot end a comment; and ASCII, which every compiler reads."""
    plain = text.encode("ascii", "replace").decode().replace("*/", "* /").replace("\\", "/")
    return re.sub(r"\s+", " ", plain).replace("/*", "/ *")
