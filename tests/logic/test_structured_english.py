"""Structured English: sentences mean what they say, and formulas get sentences that mean the same."""

import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given

import psyco
from psyco._src.logic.ast import Compare, Constraint, Number, Signal, Temporal
from psyco._src.logic.paraphrase import paraphrase, sentence_of, words_of
from psyco._src.logic.parser import parse
from tests.logic.by_definition import satisfied
from tests.logic.strategies import constraints, requirements

TAIL = "with probability at least 0.9, 98% sure"


def formula_of(sentence):
    (constraint,) = parse(f"{sentence} {TAIL}").constraints
    return str(constraint.formula)


@pytest.mark.parametrize(
    ("sentence", "formula"),
    [
        ("within 400 steps the cart shall reach goal", "F<=400 goal"),
        ("distance shall always be at least 0.1", "G (distance >= 0.1)"),
        ("collisions shall occur at most twice", "G (collisions <= 2)"),
        ('"crashed" shall occur fewer than 3 times', 'G (count("crashed") < 3)'),
        ("distance < 0.1 shall occur at least once", "F (count(distance < 0.1) >= 1)"),
        ("the robot arm shall avoid obstacle", "G !obstacle"),
        ("the robot arm shall keep force is below 3 and not hot", "G (force < 3 & !hot)"),
        ("Whenever request, the server shall within 5 steps satisfy answer", "G (request => (F<=5 answer))"),
        ("speed shall stay between 1 and 2 until goal", "(speed >= 1 & speed <= 2) W goal"),
        ("the arm shall satisfy locked before moving", "locked R !moving"),
        ("the arm shall reach goal before timeout", "!timeout U (goal & !timeout)"),
        ("collisions shall occur at most twice until goal", "collisions <= 2 W goal"),
        ("crashed shall occur at least once within 9 steps", "F<=9 (crashed >= 1)"),
        ("while dark, the lamp shall always satisfy on", "G (dark => on)"),
        ("while dark, the lamp shall eventually satisfy on", "F (dark & on)"),
        ("after start, x shall always be above 2", "!start W (start & (G (x > 2)))"),
        ("a shall hold 3 steps later", "F[3,3] a"),
        ("in the next state a shall hold", "X a"),
        ("a shall never hold from step 2 to 4", "G[2,4] !a"),
        ("return shall finally be at least -30", 'F ("end" & return >= -30)'),
        ("while dark, the lamp shall finally satisfy on", 'F ("end" & (dark => on))'),
        ("after 3 steps, the lamp shall satisfy on", "(G<=3 !on) & (F<=4 on)"),
        ("while dark, the lamp shall after 3 steps satisfy on", "(G<=3 !(dark & on)) & (F<=4 (dark & on))"),
        ("A.b + obs[2] shall immediately be equal to max(x, y)", "A.b + obs[2] = max(x, y)"),
    ],
)
def test_a_sentence_has_its_formula(sentence, formula):
    assert formula_of(sentence) == formula


@pytest.mark.parametrize(
    ("words", "bounds"),
    [
        ("with probability at least 0.9", (">=", 0.9, 1.0)),
        ("with a probability of more than 90%", (">", 0.9, 1.0)),
        ("with probability < 0.2", ("<", 0.0, 0.2)),
        ("in at most 5% of episodes", ("<=", 0.0, 0.05)),
        ("almost surely", (">=", 1.0, 1.0)),
        ("with probability between 0.2 and 30%", ("in", 0.2, 0.3)),
    ],
)
def test_probabilities_and_confidences(words, bounds):
    for sure, confidence in (("", 0.95), (", 99.5% sure", 0.995), (" with confidence of at least 0.9", 0.9)):
        (found,) = parse(f"x shall always hold {words}{sure}").constraints
        assert (found.comparison, found.lower, found.upper) == bounds
        assert found.confidence == confidence
    (found,) = parse(f"x shall always hold in 95% of environments {words}").constraints
    assert found.environments == 0.95


def test_sentences_and_formulas_share_a_text():
    text = """// a comment with shall and a ; in it
"goal": minimise the return.
"safe; shall": distance shall always be at least 0.1 with probability at least 0.85. a shall never hold
  with probability at least 0.5;
P>=0.9 [ F b ] & C>=0.9"""
    found = parse(text)
    assert not found.goal.maximize and found.goal.name == "goal"
    assert [c.name for c in found.constraints] == ["safe; shall", None, None]
    assert found.constraints[0].formula == Temporal("G", (Compare(">=", Signal("distance"), Number(0.1)),))
    assert found == parse(str(found))


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        ("x shall always be at least 3", (1, 3), "with probability at least 0.95"),
        (f"x shall be at least 3 {TAIL}", (1, 3), "say when: always"),
        (f"P>=0.5 [ F a ];\nx shall allways be at least 3 {TAIL}", (2, 9), "expected a verb"),
        (f"the big cart shall always be at least 3 {TAIL}", (1, 5), "no signal"),
        (f"x + 1 shall always satisfy y {TAIL}", (1, 1), "write a name before shall"),
        (f"a shall always hold within 4 steps {TAIL}", (1, 21), "for k steps"),
        (f"a shall always never hold {TAIL}", (1, 16), "a second timing"),
        (f"the cart shall always reach goal {TAIL}", (1, 16), "the verb says eventually"),
        (f"a shall hold within 2.5 steps {TAIL}", (1, 21), "not a whole number"),
        ("a shall always hold with probability at least 90", (1, 47), "write 95% as 0.95"),
        ("a shall always hold with probability 0.9", (1, 38), "at least, at most"),
        (f"the arm shall never avoid goal {TAIL}", (1, 15), "write avoid φ, or never satisfy φ"),
        (f"whenever a, x shall within 5 steps occur at least twice {TAIL}", (1, 15), "not whenever"),
        (f"when a, x shall occur at most twice {TAIL}", (1, 11), "counted from the first state of an episode"),
        (f"after a, x shall occur at least 3 times {TAIL}", (1, 12), "not after"),
        (f"while a, x shall occur at least 3 times {TAIL}", (1, 12), "(a and x) shall occur"),
        (f"info.cost shall occur at most twice {TAIL}", (1, 1), "write info.cost > 0 shall occur"),
        (f"x shall occur at least 3 times from step 2 to 4 {TAIL}", (1, 3), "not from a later step on"),
        ("maximise the fun", (1, 14), "maximise the return"),
        ("a shall always hold with probability at least 0.5; P>=0.5 [ F", (1, 62), "the text ends too early"),
    ],
)
def test_errors_show_place_and_remedy(text, place, words):
    with pytest.raises(psyco.RequirementError) as error:
        parse(text)
    assert (error.value.line, error.value.column) == place
    assert words in str(error.value)
    assert text.split("\n")[place[0] - 1][:40] in str(error.value)


def test_the_words_of_sentences_name_signals_in_formulas():
    assert len(parse("P>=0.9 [ G (steps >= 0 & always & within) ]").constraints) == 1


# ---- agreement with the definition ------------------------------------------------------------------------------

ATOMS = {
    "a": lambda path, i: path["a"][i],
    "not b": lambda path, i: not path["b"][i],
    "x is at least 1": lambda path, i: path["x"][i] >= 1,
    "x is below y or b": lambda path, i: path["x"][i] < path["y"][i] or path["b"][i],
}


def timings(k, low, high, stop):
    """Words of a timing -> whether it is about some of its states, and its meaning: every state, from state i on."""

    def window(first, last):
        return lambda i, n: range(i + first, i + last + 1)

    def whole(i, n):
        return range(i, n + 1)

    def until(i, n, path):
        first = next((j for j in whole(i, n) if stop(path, j)), None)
        return range(i, n + 1 if first is None else first)

    some, every, no = "some", "every", "no"
    return {
        "always": (every, whole),
        "never": (no, whole),
        "eventually": (some, whole),
        "immediately": (every, window(0, 0)),
        "at the next step": (every, window(1, 1)),
        "finally": (every, lambda i, n: range(n, n + 1)),
        f"after {k} steps": ("first", window(0, k + 1)),
        f"within {k} steps": (some, window(0, k)),
        f"for {k} steps": (every, window(0, k)),
        f"never within {k} steps": (no, window(0, k)),
        f"always from step {low} to {high}": (every, window(low, high)),
        f"never from step {low} to {high}": (no, window(low, high)),
        f"eventually from step {low} to {high}": (some, window(low, high)),
        f"{k} steps later": (every, window(k, k)),
        "until STOP": (every, until),
        "never until STOP": (no, until),
        "before STOP": ("before", whole),
        "eventually before STOP": ("earlier", whole),
    }


def meaning(path, start, how, states, response, stop, inside):
    """Whether the response comes as its timing says, from a state on, looking at the states with `inside` alone."""
    n = len(path["x"]) - 1

    def at(condition, j):
        return bool(condition(path, min(j, n)))

    found = states(start, n) if states.__code__.co_argcount == 2 else states(start, n, path)
    if how == "before":  # every state with the stop condition has an earlier one with the response
        done = [j for j in found if at(response, j) and at(inside, j)]
        return all(any(j < m for j in done) for m in found if at(stop, m))
    if how == "earlier":  # some state has the response, and neither it nor an earlier one the stop condition
        done = [j for j in found if at(response, j) and at(inside, j)]
        return any(not any(at(stop, m) for m in found if m <= j) for j in done)
    if how == "first":  # in the last of the states, and in none before it
        done = [at(response, j) and at(inside, j) for j in found]
        return done[-1] and not any(done[:-1])
    seen = [at(response, j) for j in found if at(inside, j)]
    return {"every": all(seen), "no": not any(seen), "some": any(seen)}[how]


def begins(path, start, condition):
    """States from `start` on in which a condition begins to hold."""
    holds = [bool(condition(path, i)) for i in range(len(path["x"]))]
    return [i for i in range(start, len(holds)) if holds[i] and (i == start or not holds[i - 1])]


def expected(path, scope, condition, how, states, response, stop):
    """The meaning of a whole sentence, by quantifiers over states."""
    scope_word, scope_states = scope
    condition_word, holds = condition
    n, start = len(path["x"]) - 1, 0
    if scope_word == "after":
        start = next((i for i in range(n + 1) if scope_states(path, i)), None)
        if start is None:
            return True
    inside = scope_states if scope_word == "while" else lambda path, i: True
    starts = {
        "": [start],
        "whenever": [i for i in range(start, n + 1) if condition_word and holds(path, i)],
        "when": begins(path, start, holds) if condition_word else [],
    }[condition_word]
    return all(meaning(path, i, how, states, response, stop, inside) for i in starts)


def random_case(rng):
    """A random sentence, and its meaning as a function of a path."""
    pick = {name: rng.choice(list(ATOMS)) for name in ("scope", "condition", "response", "stop")}
    low, k = rng.randrange(3), rng.randrange(5)
    stop = ATOMS[pick["stop"]]
    words, (how, states) = rng.choice(list(timings(k, low, low + rng.randrange(3), stop).items()))
    scope, condition = rng.choice(["", "while", "after"]), rng.choice(["", "when", "whenever"])
    text = f"{scope} {pick['scope']}, " if scope else ""
    text += f"{condition} {pick['condition']}, " if condition else ""
    text += f"{words.replace('STOP', pick['stop'])}, the system shall satisfy {pick['response']} {TAIL}"
    of = (
        (scope, ATOMS[pick["scope"]]),
        (condition, ATOMS[pick["condition"]]),
        how,
        states,
        ATOMS[pick["response"]],
        stop,
    )
    return text, lambda path: expected(path, *of)


def random_path(rng):
    size = 1 + rng.randrange(7)
    numbers = {name: np.array([rng.choice([0.0, 1.0, 2.0]) for _ in range(size)]) for name in "xy"}
    return numbers | {name: np.array([rng.random() < 0.5 for _ in range(size)]) for name in "ab"}


def check_agreement(count, per_sentence=20):
    rng, seen = random.Random(0), set()
    for _ in range(count // per_sentence):
        text, holds = random_case(rng)
        (constraint,) = parse(text).constraints
        for _ in range(per_sentence):
            path = random_path(rng)
            truth = holds(path)
            assert satisfied(constraint.formula, path) == truth, (text, path)
            seen.add(truth)
    assert seen == {True, False}


def test_sentences_agree_with_their_definition_on_random_traces():
    check_agreement(5_000)


@pytest.mark.more
def test_sentences_agree_with_their_definition_on_100_000_random_traces():
    check_agreement(100_000)


# FRET has 8 scopes, 3 conditions, 2 kinds of probability and 12 timings: 576 templates. Those without scope and
# condition have a single P; these are its formulas (probabilisticSemantics.json of FRET 3.1) in our notation. Its LAST,
# the end of a finite trace, is `"end"` in `finally` and never reached elsewhere: here the last state repeats.
FRET_TIMINGS = {
    "immediately": "a",
    "finally": 'G ("end" => a)',
    "at the next step": "X a",
    "eventually": "F a",
    "always": "G a",
    "never": "G !a",
    "within 3 steps": "F<=3 a",
    "for 3 steps": "G<=3 a",
    "after 1 step": "(G<=1 !a) & (F<=2 a)",
    "until b": "b R (a | b)",
    "before b": "a R !b",
}


@pytest.mark.parametrize("probability", [("almost surely", ">=1"), ("with probability at least 0.9", ">=0.9")])
@pytest.mark.parametrize("timing", FRET_TIMINGS)
def test_templates_of_fret_with_a_single_probability_mean_the_same(timing, probability):
    words, bound = probability
    (ours,) = parse(f"the system shall {timing} satisfy a {words}").constraints
    (theirs,) = parse(f"P{bound} [ {FRET_TIMINGS[timing]} ]").constraints
    assert (ours.comparison, ours.lower, ours.upper) == (theirs.comparison, theirs.lower, theirs.upper)
    rng, seen = random.Random(0), set()
    for _ in range(300):
        path = random_path(rng)
        seen.add(satisfied(theirs.formula, path))
        assert satisfied(ours.formula, path) == satisfied(theirs.formula, path), path
    assert seen == {True, False}
    assert parse(sentence_of(ours)).constraints == (ours,)


@pytest.mark.parametrize("probability", ["almost surely", "with probability at least 0.9"])
def test_a_template_of_fret_without_timing_asks_for_one(probability):
    """There it means eventually; who writes `shall be at least 3` may well mean always."""
    with pytest.raises(psyco.RequirementError, match=r"without a timing[^$]*say when: always, never, eventually"):
        parse(f"the system shall satisfy a {probability}")


# ---- from formulas to sentences -----------------------------------------------------------------------------------


@given(constraints())
def test_the_sentence_of_a_formula_parses_to_it(constraint):
    if (sentence := sentence_of(constraint)) is not None:
        assert parse(sentence).constraints == (constraint,)


@given(requirements())
def test_every_property_has_words(requirement):
    found = paraphrase(requirement)
    assert len(found) == 1 + len(requirement.constraints) + len(requirement.questions)
    assert all(each.words.endswith(".") and "None" not in each.words for each in found)


@pytest.mark.parametrize(
    "sentence",
    [
        "distance shall always be at least 0.1",
        "the system shall satisfy goal within 400 steps",
        "whenever a, the system shall satisfy b within 3 steps",
        "when a, the system shall never satisfy b",
        "after a, the system shall eventually satisfy b",
        "the system shall satisfy a before b",
        "the system shall eventually satisfy a before b",
        "the system shall satisfy a and (b or not c) until x is more than 3",
    ],
)
def test_a_canonical_sentence_comes_back(sentence):
    (constraint,) = parse(f"{sentence} {TAIL}").constraints
    assert sentence_of(constraint) == f"{sentence} {TAIL}"


def test_words_of_a_formula():
    (constraint,) = parse("P>=0.85 [ G (distance >= 0.1 | collisions <= 1) ] & C>=0.98").constraints
    assert isinstance(constraint, Constraint)
    assert words_of(constraint) == (
        "An episode has this property with probability at least 0.85: in every state, (distance is at least 0.1 or "
        "collisions is at most 1). This is shown with an error rate of at most 0.02."
    )


# ---- where people meet it -----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_explain_suggests_signals_of_the_domain(cli):
    text = "distanse shall always be at least 0.1 with probability at least 0.85"
    said = cli("explain", text, "--domain", "particle-dance")
    assert said.status == 2 and "did you mean 'distance'?" in said.err
    said = cli("explain", text.replace("distanse", "distance"), "--domain", "particle-dance")
    assert said.status == 0 and "P>=0.85 [ G (distance >= 0.1) ] & C>=0.95" in said.out


def test_explain_reads_files(cli, tmp_path: Path):
    file = tmp_path / "my.props"
    file.write_text("P>=0.9 [ F<=5 a ];\n")
    said = cli("explain", file, "--json")
    assert said.status == 0 and "the system shall satisfy a within 5 steps" in said.out
