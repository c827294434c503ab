import re

import pytest

from psyco._src.core.errors import PsycoError, RequirementError
from psyco._src.logic.ast import (
    DEFAULT_CONFIDENCE,
    Aggregate,
    Bound,
    Constraint,
    Goal,
    Label,
    Minus,
    Number,
    Signal,
    Temporal,
)
from psyco._src.logic.parser import parse, parse_formula


def test_the_requirement_of_the_paper():
    requirement = parse("""
        // requirements of Particle Dance
        "optimize return":    Rmax=? [ C ];
        "bounded collisions": P>=0.85 [ G (distance >= 0.1 | collisions <= 1) ] & C>=0.98;
    """)
    assert requirement.goal == Goal(maximize=True, name="optimize return")
    (constraint,) = requirement.constraints
    assert (constraint.name, constraint.lower, constraint.upper) == ("bounded collisions", 0.85, 1.0)
    assert constraint.confidence == 0.98
    assert constraint.formula.operator == "G"


@pytest.mark.parametrize(
    ("symbols", "words"),
    [
        ("P≥0.85 (□ φ) and C≥0.98", "P>=0.85 [ G φ ] & C>=0.98"),
        ("P≤0.1 (◇ ¬a ∧ b ∨ c)", "P<=0.1 [ F (!a & b | c) ]"),
        ("P>0.5 (○ (a → b))", "P>0.5 [ X (a => b) ]"),
        ("P<0.5 (x ≠ 1 ⇒ (a ↔ b))", "P<0.5 [ x != 1 => (a <=> b) ]"),
        ("P≥0.5 (a U≤3 b ⇔ c) and C≥0.9;", "P>=0.5 [ a U<=3 (b <=> c) ] & C>=0.9;"),
        ("P>=0.5 [ not a and b or c ]", "P>=0.5 [ ((!a) & b) | c ]"),
        ("ℙ≥0.5 (□≤7 a) ∧ ℂ≥0.9", "P>=0.5 [ G<=7 a ] & C>=0.9"),
        ("P ∈ [0.1, 0.2] (a)", "P in [0.1,0.2] [ a ]"),
        ("Rmin =? ( C )", "Rmin=? [ C ]"),
        (";; P>=0.5 [ a ] ;;", "P>=0.5 [ a ]"),
        ("P>=.5[a]//c\n&C>=1e-1//d", "P>=0.5 [ a ] & C>=0.1"),
    ],
)
def test_the_symbols_of_the_paper_are_synonyms(symbols, words):
    assert parse(symbols) == parse(words)


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        ("F a & b", "F (a & b)"),  # as in PRISM
        ("F a U b", "(F a) U b"),
        ("a & b U c | d", "(a & b) U (c | d)"),
        ("a U b U c", "a U (b U c)"),
        ("a W b R c", "a W (b R c)"),
        ("a => b <=> c", "a => (b <=> c)"),  # PRISM: <=> binds tighter than =>
        ("a => b => c", "(a => b) => c"),
        ("a <=> b <=> c", "(a <=> b) <=> c"),
        ("a | b & !c", "a | (b & (!c))"),
        ("a | b => c | d", "(a | b) => (c | d)"),
        ("! x = 1 & b", "(!(x = 1)) & b"),
        ("x < 1 = true", "(x < 1) <=> true"),
        ("terminated = true", "terminated <=> true"),
        ('"a" != "b"', '!("a" <=> "b")'),
        ("x - y - 1 < -x * 2 + y / 3", "((x - y) - 1) < (((-x) * 2) + (y / 3))"),
        ("G (a => F<=5 b)", "G (a => (F<=5 b))"),
        ("G (a => F<=5 b | c)", "G (a => (F<=5 (b | c)))"),  # as far right as it can
        ("a & F b & c U d", "(a & (F (b & c))) U d"),
        ("! F a | b", "!(F (a | b))"),
        ("a <=> G b => c", "a <=> (G (b => c))"),
        ("X F G a", "X (F (G a))"),
        ("F[0,5] a", "F<=5 a"),
        ("X<=4 a", "X a"),
        ("X[1,1] a", "X a"),
    ],
)
def test_precedence(text, meaning):
    assert parse_formula(text) == parse_formula(meaning)


def test_signals_have_dots_indices_and_locations():
    formula = parse_formula('true &\n  obs[2] > -info.cost & "crashed" & min_x > 0')
    second, third, fourth = formula.operands[1:]
    assert second.left == Signal("obs", 2)
    assert second.right == Minus(Signal("info.cost"))
    assert third == Label("crashed")
    assert fourth.left == Signal("min_x")
    assert second.left.location[:2] == (2, 3)
    assert second.right.body.location.source == '  obs[2] > -info.cost & "crashed" & min_x > 0'


def test_aggregate_names_are_reserved_only_before_a_parenthesis():
    formula = parse_formula("count > sum (count) & most.least = mean[1]")
    assert formula.operands[0].left == Signal("count")
    assert formula.operands[0].right == Aggregate("sum", Signal("count"))
    assert formula.operands[1].left == Signal("most.least")
    assert formula.operands[1].right == Signal("mean", 1)


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("R<=2 [ C ]", "R{reward}<=2 [ C ]"),
        ("R≤2 ( C )", "R{reward}<=2 [ C ]"),
        ("R=? [ C ]", "R{reward}=? [ C ]"),
        ("Rmin=? [ F a ]", "R{reward}min=? [ F a ]"),
        ("R{x}<=2 [ C ] & C>=0.9 within [0,5]", "R{x}<=2 [ C ] within [0,5] & C>=0.9"),
        ("R{x} ∈ [-1,2] [ ◇ a ]", "R{x} in [-1,2] [ F a ]"),
        ("CVaR(.95)≥-2 ( C )", "CVaR{reward}(0.95)>=-2 [ C ]"),
        ("CVaR {x} (0.5) =? [ I=3 ]", "CVaR{x}(0.5)=? [ I=3 ]"),
        ("P=? [ F=3 a ]", "P=? [ F[3,3] a ]"),
        ("P=? [ within > 1 ]", "P=? [ (within) > 1 ]"),
    ],
)
def test_two_ways_to_write_the_same(text, same):
    assert parse(text) == parse(same)


def test_constraints_keep_their_order_and_questions_stand_apart():
    requirement = parse("P=? [ a ]; R{x}<=2 [ C ]; Rmin=? [ C ]; P>=0.5 [ a ]; S>=0.5 [ b ]; R{x}max=? [ C ]")
    assert requirement.goal == Goal(maximize=False)
    assert [type(each).__name__ for each in requirement.constraints] == [
        "Expectation",
        "Constraint",
        "Expectation",
    ]
    assert [each.best for each in requirement.questions] == [None, "max"]
    assert [bound.constraint for bound in requirement.probability_bounds] == [1]
    assert requirement.measured == (*requirement.constraints[::2], requirement.questions[0])


def test_defaults_are_spelled_out():
    assert parse("P>=0.5 [ a ]").constraints == (Constraint(Signal("a"), ">=", 0.5, 1.0, DEFAULT_CONFIDENCE, None),)
    assert str(parse("P>=0.5 [ a ]")) == "Rmax=? [ C ];\nP>=0.5 [ a ] & C>=0.95;"
    assert parse_formula("F<=3 a").bound == Bound(0, 3)
    assert parse_formula("X a") == Temporal("X", (Signal("a"),))
    assert parse_formula("x = 1e3").right == Number(1000.0)


ERRORS = [
    # text, line, column, what the message says
    ("P>=1.5 [ a ]", 1, 4, r"probability 1.5 is not between 0 and 1.*0\.95"),
    ("P>=-0.1 [ a ]", 1, 4, "probability -0.1 is not between 0 and 1"),
    ("P in [0.5,2] [ a ]", 1, 11, "probability 2 is not between 0 and 1"),
    ("P>=0.5 [ a ] & C>=98", 1, 19, "confidence 98 is not between 0 and 1"),
    ("P>1 [ a ]", 1, 2, "no probability is > 1"),
    ("P<0 [ a ]", 1, 2, "no probability is < 0"),
    ("P=0.5 [ a ]", 1, 2, r"compared by =.*P in \[a,b\]"),
    ("R=0.5 [ C ]", 1, 2, r"R cannot be compared by =.*R in \[a,b\]"),
    ("R>=1e999 [ C ]", 1, 4, "number 1e999 is too large"),
    ("R in [2,1] [ C ]", 1, 7, r"interval \[2,1\] is empty"),
    ("S<=2 [ a ]", 1, 4, "probability 2 is not between 0 and 1"),
    ("S>=0.5 [ x + 1 ]", 1, 10, "S needs something that is true or false"),
    ("S>=0.5 [ F a ]", 1, 10, "S looks at one state at a time, but F a has a temporal operator in it"),
    ("R{F a}<=1 [ C ]", 1, 3, "R looks at one state at a time, but F a has a temporal operator in it"),
    ("R{1}<=1 [ C ]", 1, 3, r"R\{1\} is the same at every step.*R\{true\} to count steps"),
    ("R{x}<=1 [ C>=3 ]", 1, 12, "C cannot be bounded by >=.*write C<=k"),
    ("R{x}<=1 [ C<=2.5 ]", 1, 14, "bound 2.5 is not a whole number"),
    ("R{x}<=1 [ I!=2 ]", 1, 12, "I cannot be compared by !=.*write I=k"),
    ("R{x}<=1 [ I=x ]", 1, 13, "constants and expressions are not known here"),
    ("R{x}<=1 [ G a ]", 1, 11, r"R cannot be taken over G a.*\[ C<=k \]"),
    ("R{x}<=1 [ F<=3 a ]", 1, 11, "R cannot be taken over F<=3 a"),
    ("R{x}<=1 [ F X a ]", 1, 11, "R cannot be taken over F X a"),
    ("R{x}<=1 [ C ] within [2,2]", 1, 23, r"interval \[2,2\] is empty"),
    ("R{x}<=1 [ C ] & C>=0.9 & C>=0.8", 1, 26, "a second confidence or range"),
    ("P>=0.5 [ a ] within [0,1]", 1, 14, r"range for a probability.*within \[0,1\] anyway"),
    ("Rmax=? [ C ] & C>=0.9", 1, 16, "a goal has neither a confidence nor a range"),
    ("R{x}<=1 [ ", 1, 10, r"ends too early.*\[ C \], \[ C<=k \], \[ I=k \], \[ F φ \] or \[ S \]"),
    ("R{x", 1, 4, "ends too early.*expected }"),
    ("CVaR{x}<=1 [ C ]", 1, 8, r"unexpected <=.*expected \("),
    ("CVaR{x}(1)<=1 [ C ]", 1, 9, "level 1 of CVaR is not between 0 and 1.*worst 5%"),
    ("CVaR{x}(-0.5)<=1 [ C ]", 1, 9, "level -0.5 of CVaR is not between 0 and 1"),
    ("CVaR{x}(0.9) in [1,2] [ C ]", 1, 14, "CVaR cannot be compared by in.*mean of the largest values"),
    ("CVaR{x}(0.9)=1 [ C ]", 1, 13, "CVaR cannot be compared by ="),
    ("CVaR{x}(0.9)<=1 [ S ]", 1, 1, "a rate has no worst episodes"),
    ("CVaR{x}(0.9)min=? [ C ]", 1, 13, "the min of CVaR over all controllers is not computed"),
    ("P>=0.5 [ CVaR > 1 ]", 1, 10, "CVaR cannot name a signal"),
    ("P>=0.5 [ R{x}<=1 [ C ] ]", 1, 10, "R cannot name a signal, nor stand inside a formula"),
    ("C>=0.9", 1, 1, r"confidence without a probability.*write P>=p \[ ... \] & C>=c"),
    ('P>=0.5 [ a ];\n"sure": C>=0.9;', 2, 9, "confidence without a probability"),
    ("P>=0.5 [ a ] & C>0.9", 1, 17, "confidence cannot be compared by >.*write C>=c"),
    ("P>=0.5 [ a ] & C<=0.9", 1, 17, "confidence cannot be compared by <="),
    ("P in [0.9,0.1] [ a ]", 1, 7, r"interval \[0.9,0.1\] is empty"),
    ("P>=0.5 [ F[5,2] a ]", 1, 12, r"interval \[5,2\] is empty"),
    ("P>=0.5 [ F<=2.5 a ]", 1, 13, "bound 2.5 is not a whole number"),
    ("P>=0.5 [ a U<=-1 b ]", 1, 15, "bound -1 is not a whole number"),
    ("P>=0.5 [ G[0,1e3] a ]", 1, 14, "bound 1e3 is not a whole number"),
    ("P>=0.5 [ F>=3 a ]", 1, 11, "cannot be bounded by >=.*write <=k"),
    ("P>=0.5 [ X[2,3] a ]", 1, 12, r"X looks one step ahead.*write F\[2,3\]"),
    ("P>=0.5 [ obs[1.5] > 0 ]", 1, 14, "index 1.5 is not a whole number"),
    ('"a": P>=0.5 [ x ];\n"a": P>=0.6 [ x ]', 2, 1, 'name "a" is given twice'),
    ('"a": Rmax=? [ C ];\n "a": P>=0.6 [ x ]', 2, 2, 'name "a" is given twice'),
    ('Rmax=? [ C ];\n"b": Rmin=? [ C ]', 2, 6, "second goal"),
    ("P>=0.5 [ G (x + 1) ]", 1, 13, "G needs something that is true or false, but x . 1 is a number"),
    ("P>=0.5 [ 1 ]", 1, 10, "P needs something that is true or false, but 1 is a number"),
    ("P>=0.5 [ a U -x ]", 1, 14, "U needs something that is true or false"),
    ("P>=0.5 [ x => 5 ]", 1, 15, "=> needs something that is true or false"),
    ("P>=0.5 [ x & y + 1 ]", 1, 14, "& needs something that is true or false"),
    ("P>=0.5 [ ! (x * 2) ]", 1, 13, "! needs something that is true or false"),
    ("P>=0.5 [ distance + true > 0 ]", 1, 21, r"\+ needs a number, but true is true or false"),
    ("P>=0.5 [ 0 < x < 1 ]", 1, 10, "< needs a number, but 0 < x is true or false"),
    ("P>=0.5 [ abs(a & b) > 0 ]", 1, 14, "abs needs a number"),
    ('P>=0.5 [ -"a" > 0 ]', 1, 11, "- needs a number"),
    ("P>=0.5 [ 3 = true ]", 1, 10, "= needs something that is true or false, but 3 is a number"),
    ("P>=0.5 [ abs(x, y) > 0 ]", 1, 10, "abs takes one number, not 2"),
    ("P>=0.5 [ min(x) > 0 ]", 1, 10, "min takes two numbers or more, not 1"),
    (
        "P>=0.5 [ count(sum(x) > 1) <= 1 ]",
        1,
        16,
        "sum inside count: an aggregate cannot stand inside another",
    ),
    (
        "P>=0.5 [ mean(abs(most(x))) > 1 ]",
        1,
        19,
        "most inside mean: an aggregate cannot stand inside another",
    ),
    ("P>=0.5 [ count(F a) <= 1 ]", 1, 16, r"count looks at one state .*F a has .*around count\("),
    ("P>=0.5 [ sum(X a) <= 1 ]", 1, 14, "sum looks at one state at a time"),
    (
        "P>=0.5 [ count(x + 1) <= 1 ]",
        1,
        16,
        "count needs something that is true or false, but x . 1 is a number",
    ),
    ("P>=0.5 [ sum(x > 1) <= 1 ]", 1, 14, r"sum needs a number.*count\(x > 1\) says how often it holds"),
    ("P>=0.5 [ sum(x, y) > 0 ]", 1, 10, "sum takes one argument, not 2"),
    ("P>=0.5 [ G count(a) ]", 1, 12, r"G needs something that is true or false, but count\(a\) is a number"),
    ("P>=0.5 [ x < 1e999 ]", 1, 14, "number 1e999 is too large"),
    ("P>=0.5 [ S > 0 ]", 1, 10, "S cannot name a signal.*A C E F G I P R S U W X"),
    ("P>=0.5 [ G (U > 0) ]", 1, 13, "unexpected U.*expected a formula"),
    ("P>=0.5 [ a $ b ]", 1, 12, r"unexpected character '\$'.*expected \]"),
    ("P>=0.5 [ a ]\n & $", 2, 4, r"unexpected character '\$'.*expected C"),
    ('P>=0.5 [ "a ]', 1, 10, "quote that is not closed"),
    ("P>=0.5 [ x == 1 ]", 1, 13, "PRISM writes = for =="),
    ("P>=0.5 [ a && b ]", 1, 13, "PRISM writes & for &&"),
    ("P>=0.5 [ a || b ]", 1, 13, r"PRISM writes \| for \|\|"),
    ("P>=0.5 [ a -> b ]", 1, 13, "PRISM writes => for ->"),
    ("P>=0.5 [ a", 1, 11, r"ends too early.*expected \]"),
    ("P>=0.5 [ (a & ", 1, 14, "ends too early.*expected a formula"),
    ("P>=0.5 [ a +\n\n", 1, 13, "ends too early.*expected a number or a signal"),
    ("P", 1, 2, r"ends too early.*expected a bound such as >=0.95 or in \[0.8,0.9\]"),
    ("P>=", 1, 4, "ends too early.*expected a number$"),
    ("P>=0.5 [ a ) ]", 1, 12, r"unexpected \).*expected \]"),
    ("P>=0.5 [ a )", 1, 12, r"unexpected \).*expected \]"),
    ("P>=0.5 [ a ] & P>=0.5 [ b ] & C>=0.9", 1, 16, "unexpected P.*separate constraints by ;"),
    ("P>=0.5 [ a ] P>=0.5 [ b ]", 1, 14, "unexpected P.*expected & C>=c or ; or the end"),
    ("G a", 1, 1, r"unexpected G.*a formula stands inside P>=p \[ ... \]"),
    ('"a" P>=0.5 [ a ]', 1, 5, "unexpected P.*expected :"),
    ("P>=0.5 [ ]", 1, 10, r"unexpected \].*expected a formula"),
    ("P>=0.5 [ " + "!" * 5000 + "a ]", 1, 4910, "more than 100 operators inside each other"),
    ("P>=0.5 [ " + "(x+" * 5000 + "x" + ")" * 5000 + " > 0 ]", 1, None, "more than 100 operators"),
]


@pytest.mark.parametrize(("text", "line", "column", "says"), ERRORS, ids=[e[0][:30] for e in ERRORS])
def test_errors_name_the_location_and_the_remedy(text, line, column, says):
    with pytest.raises(RequirementError) as caught:
        parse(text)
    error, message = caught.value, str(caught.value)
    assert (error.line, error.column) == (line, column or error.column)
    assert re.search(says, message, re.DOTALL)
    first, shown, caret = message.split("\n")[:3]
    assert first.endswith(f"at line {line}, column {error.column}:")
    # The caret stands under the very character, also where a long line is cut.
    source = text.split("\n")[line - 1]
    assert shown[caret.index("^") :][:5].strip() == source[error.column - 1 :][:5].strip()
    assert len(shown) <= 102
    assert not re.search(r"RPAR|LPAR|RSQB|LSQB|SEMICOLON|\$END|NAME|PREFIX|RELATION", message)


def test_the_full_text_of_an_error():
    with pytest.raises(PsycoError) as caught:
        parse("P>=0.85 [ G (distance + true >= 0.1) ]")
    assert str(caught.value) == (
        "+ needs a number, but true is true or false at line 1, column 25:\n"
        "  P>=0.85 [ G (distance + true >= 0.1) ]\n"
        "                          ^\n"
        "join Booleans by ! & | => <=>"
    )


def test_long_and_deeply_bracketed_texts_are_no_problem():
    assert parse_formula("(" * 5000 + "a" + ")" * 5000) == Signal("a")
    assert len(parse_formula(" & ".join(["a"] * 1001)).operands) == 1001
    deep = parse_formula("X " * 99 + "a")
    assert parse_formula(str(deep)) == deep


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (" & ".join(["a"] * 1002), "more than 1000 operators at line 1"),
        ("min(" + ", ".join(["a"] * 1100) + ") > 0", "more than 1000 operators at line 1"),
        (" & ".join(["(F a)"] * 61), "more than 60 operators F, G, U, W and R at line 1"),
        ("a" * 100_001, "a requirement of 100,001 characters; at most 100,000 are read"),
        ("F<=" + "9" * 5000 + " a", "the bound is too large"),
        ("obs[" + "1" * 10 + "] > 0", "the index is too large"),
    ],
    ids=lambda text: text[:12],
)
def test_beyond_the_stated_limits_a_text_is_refused_with_the_reason(text, words):
    with pytest.raises(RequirementError, match=words):
        parse_formula(text)
    with pytest.raises(RequirementError, match="more than 1000 operators"):
        parse(";".join(["P>=0.5 [ true ]"] * 1001))


def test_locations_in_a_line_share_its_text():
    """Otherwise the memory for a long line is quadratic."""
    a, b = parse_formula("aaa & bbb").operands
    assert a.location.source is b.location.source


def test_invalid_texts_raise_only_requirement_errors():
    """Every prefix, deletion and insertion of a valid text either parses or raises RequirementError."""
    text = '"n": P>=0.85 [ G (obs[1] >= -0.1 | "a" U<=3 !b) ] & C>=0.98; Rmin=? [ C ];'
    refused = 0
    for i in range(len(text)):
        for broken in (text[:i], text[:i] + text[i + 1 :], text[:i] + "?" + text[i:]):
            try:
                parse(broken)
            except RequirementError:
                refused += 1
    assert refused > len(text)
