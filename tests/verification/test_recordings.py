"""Recorded outcomes and signals: every format is read, and what could be read in two ways is named with its line."""

import json
import tracemalloc
from itertools import groupby

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import psyco
from psyco._src.core.errors import PsycoError, RunError
from psyco._src.logic.parser import parse
from psyco._src.logic.requirement import outcome_requirement
from psyco._src.verification import recorded_traces, recordings

ONE = outcome_requirement("P>=0.5 & C>=0.9")
TWO = parse('"left": P>=0.5 [ F a ]; "right": P>=0.5 [ F b ]')
UNNAMED = outcome_requirement("P>=0.5; P>=0.9")


def read_outcomes(data, requirement, origin):
    return np.stack(recordings.read_outcomes(data, requirement, origin=origin).columns, 1)


def read_traces(data, requirement, origin):
    return np.stack(recorded_traces.read_traces(data, requirement, origin=origin).columns, 1)


# ---- outcomes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"1\n0\n1\n", [1, 0, 1]),
        (b"1\r\n0\r\n1", [1, 0, 1]),
        (b"1\n0\n1\n\n \n", [1, 0, 1]),
        (b"true\nFalse\n 1.0\n", [1, 0, 1]),
        (b"outcome\n1\n0\n1\n", [1, 0, 1]),
        (b"success\n1\n0\n1\n", [1, 0, 1]),
        (b"\xef\xbb\xbfsatisfied\n1\n0\n1\n", [1, 0, 1]),
        (b"episode,satisfied,reward\n0,1,2.5\n1,0,nan\n2,1,\n", [1, 0, 1]),
    ],
)
def test_one_column_is_read(data, expected):
    assert read_outcomes(data, ONE, origin="x").tolist() == [[bool(x)] for x in expected]


def test_columns_are_matched_by_name_and_without_a_header_by_order():
    assert read_outcomes(b"1,0\n1,1\n", TWO, origin="x").tolist() == [[True, False], [True, True]]
    assert read_outcomes(b"1,0\n1,1\n", UNNAMED, origin="x").tolist() == [[True, False], [True, True]]
    assert read_outcomes(b"right,left\n1,0\n1,1\n", TWO, origin="x").tolist() == [[False, True], [True, True]]
    assert read_outcomes(b"n,right,left\n1,1,0\n", TWO, origin="x").tolist() == [[False, True]]
    named = parse('"safe": P>=0.5 [ F a ]')
    for header in (b"goal,safe", b"goal,satisfied"):
        assert read_outcomes(header + b"\n1,0\n", named, origin="x").tolist() == [[False]]


@pytest.mark.parametrize(
    ("requirement", "data", "words"),
    [
        (ONE, b"", "empty"),
        (ONE, b" \n \n", "empty"),
        (ONE, b"1\n2\n", "line 2 of x: an outcome is 0 or 1, true or false; got '2'"),
        (ONE, b"1\nnan\n", "line 2 .* got 'nan'"),
        (ONE, b"nan\n", "line 1"),
        (ONE, b"2\n1\n0\n", "line 1"),
        (ONE, b",\n", "line 1 of x is blank"),
        (ONE, b"1\n0,1\n", "line 2 of x has 2 cells"),
        (ONE, b"1,0\n0,1\n", "2 columns"),
        (ONE, b"a,b,c\n1,0,1\n", "line 1 of x is neither"),
        (ONE, b"\xff\xfe1\n", "UTF-8"),
        (ONE, b"satisfied\n", "header"),
        (ONE, b'"1\n0', "line 2 of x is not CSV"),
        # a violation that would become a header
        (ONE, b"fail\n1\n1\n", "line 1 of x is neither outcomes .* nor a header .*: fail; call one column satisfied"),
        (ONE, b"no\n1\n1\n", "line 1 of x is neither"),
        (ONE, b"O\n1\n1\n", "line 1 of x is neither"),
        (ONE, b"satisfied,success\n1,0\n", "line 1 of x is neither"),
        (UNNAMED, b"no,yes\n1,1\n", "line 1 of x is neither .* leave the header out"),
        # columns of another constraint
        (TWO, b"right,other\n1,1\n", r"line 1 of x is neither .*: right, other; .* Constraints: left, right"),
        (TWO, b"a,b\n1,1\n", "line 1 of x is neither"),
        (parse('"safe": P>=0.5 [ F a ]'), b"goal\n1\n", "line 1 of x is neither"),
        (ONE, b"satisfied,satisfied\n1,0\n", "line 1 of x: two columns are called 'satisfied'"),
        # rows that say nothing, and files one after the other
        (ONE, b"1\n\n0\n", "line 2 of x is blank"),
        (ONE, b"\n1\n0\n", "line 1 of x is blank"),
        (TWO, b"1,1\n1,\n", "line 2 of x: an outcome is .* got ''"),
        (TWO, b"1,1\n,\n1,1\n", "line 2 of x is blank"),
        (ONE, b"satisfied\n1\nsatisfied\n0\n", "line 3 of x is a header again"),
        (ONE, b"n,satisfied\n1,1\nsatisfied,n\n0,1\n", "line 3 of x: an outcome is"),
        (ONE, b"episode,satisfied\n1,1\n2,1\n1,1\n", "line 4 of x: episode '1', begun on line 2, comes back"),
        (ONE, b"episode,satisfied\n1,1\n1,1\n", "line 3 of x: the episode of line 2 has a second outcome"),
    ],
)  # fmt: skip
def test_ambiguous_outcomes_are_refused(requirement, data, words):
    with pytest.raises(RunError, match=words):
        read_outcomes(data, requirement, origin="x")


def test_a_million_plain_outcomes_are_read_without_a_loop(monkeypatch):
    from psyco._src.verification import recordings

    monkeypatch.delattr(recordings, "csv_rows")
    outcomes = np.random.default_rng(0).random(10**6) < 0.85
    data = b"\n".join(np.where(outcomes, b"1", b"0").tolist()) + b"\n\n"
    assert (read_outcomes(data, ONE, origin="x")[:, 0] == outcomes).all()


def read_or_refused(read, lines, requirement):
    """Return the outcomes, or the error message."""
    try:
        return read("\n".join(lines).encode(), requirement, origin="file")[:, 0].tolist(), ""
    except RunError as error:
        return None, str(error)


LINES = st.sampled_from(["1", "0", "true", "False", "", " ", "satisfied", "fail", "2", "1,0", ","])


@given(st.lists(LINES, min_size=1, max_size=8))
def test_every_line_of_outcomes_counts_or_is_named(lines):
    found, problem = read_or_refused(read_outcomes, lines, ONE)
    if found is None:
        assert any(word in problem for word in ("line ", "empty", "2 columns", "no rows"))
        return
    while not lines[-1].strip():
        lines.pop()
    words = {"1": True, "true": True, "0": False, "False": False}
    assert found == [words[line] for line in lines[lines[0] == "satisfied" :]]


# ---- traces ----------------------------------------------------------------------------------------------------------

CSV = b"""episode,x,safe,obs[0],obs[1],note
7,1,true,0,1,hello
7,2,true,1,1,
7,3,true,0,1,5
9,5,false,2,1,
9,5,true,2,1,

"""


@pytest.mark.parametrize(
    ("formula", "expected"),
    [
        ("G safe", [True, False]),
        ("F x >= 5", [False, True]),
        ('F ("end" & step = 2)', [True, False]),
        ("G obs[1] = 1", [True, True]),
        ("X (obs[0] = 1)", [True, False]),
        ('X X (x = 3 & "end")', [True, False]),
        ('F ("end" & count(x <= 2) = 2 & sum(x) = 6)', [True, False]),
        ("G count(x = 5) < 2", [True, False]),
        ("X X (mean(x) = 5)", [False, True]),
    ],
)
def test_formulas_are_judged_on_recorded_signals(formula, expected):
    requirement = parse(f"P>=0.5 [ {formula} ]")
    assert read_traces(CSV, requirement, origin="x")[:, 0].tolist() == expected


def test_json_lines_are_read_with_vectors_and_returns():
    rows = [
        {"episode": "a", "reward": 0, "obs": [1, 2]},
        {"episode": "a", "reward": -2, "obs": [1, 3.5]},
        {"episode": "b", "reward": 0, "obs": [1, 2]},
    ]
    data = "\n".join(map(json.dumps, rows)).encode()
    requirement = parse('P>=0.5 [ F ("end" & return <= -2) ]; P>=0.5 [ G obs[1] >= 2 ]')
    assert read_traces(data, requirement, origin="x").tolist() == [[True, True], [False, True]]


@given(st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=6), min_size=1, max_size=6))
def test_traces_are_judged_as_single_paths_are(episodes):
    formula = "F (x >= 2 & X (x <= 1)) | G x = 1"
    lines = [f"{i},{x}" for i, path in enumerate(episodes) for x in path]
    found = read_traces("\n".join(["episode,x", *lines]).encode(), parse(f"P>=0.5 [ {formula} ]"), origin="x")
    assert found[:, 0].tolist() == [psyco.check_path(formula, {"x": path}).satisfied for path in episodes]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "empty"),
        (b"x\n1\n", "no 'episode' column"),
        (b"episode,x\n", "no rows"),
        (b"episode,x\n1\n", "line 2 of file has 1 cells"),
        (b"episode,x\n1,nan\n", "line 2 of file: x is 'nan'; it should be a number"),
        (b"episode,x\n1,2\n1,inf\n", "line 3 of file: x is 'inf'"),
        (b"episode,y\n1,2\n", "unknown signal 'x'"),
        (b"episode,x\n1,two\n", "line 2 of file: x is 'two'"),
        (b"episode,x\n1,1_0\n", "line 2 of file: x is '1_0'"),
        (b"episode,x\n1,2\n1,\n", "line 3 of file: x is ''; it should be a number, as on line 2"),
        (b"episode,x\n1,2\n1,true\n", "line 3 of file: x is True"),
        (b"episode,x\n1,2\n\n1,2\n", "line 3 of file is blank"),
        (b"episode,x\n,2\n", "line 2 of file: '' is no name of an episode"),
        (b"episode,x,x\n1,2,0\n", "line 1 of file: two columns are called 'x'"),
        (b"episode,x[1]\n1,2\n", r"x\[0\] to x\[0\]"),
        (b"episode,x,x[0]\n1,2,3\n", r"x\[0\] to x\[0\]"),
        (b"episode,x[0],x[00]\n1,2,3\n", r"x\[0\] to x\[1\], each once"),
        # several recordings in one file
        (b"episode,x\n1,2\n2,2\n1,0\n", "line 4 of file: episode '1', begun on line 2, comes back .* prefix"),
        (b"episode,x\n1,2\n1.0,0\n", "line 3 of file: episode '1.0', begun on line 2"),
        (b"episode,x\n1,2\nepisode,x\n2,0\n", "line 3 of file is a header again"),
        (b"episode,x\n1,2\nx,episode\n0,2\n", "line 3 of file is a header again"),
        # steps that are missing, repeated or out of order
        (b"episode,step,x\n1,0,2\n1,2,2\n", "line 3 of file: step is 2 where 1 should stand"),
        (b"episode,step,x\n1,0,2\n1,0,2\n", "line 3 of file: step is 0 where 1 should stand"),
        (b"episode,step,x\n1,0,2\n2,1,2\n2,0,2\n", "line 3 of file: step is 1 where 0 should stand"),
        (b"episode,step,x\n1,0,2\n2,,2\n", "line 3 of file: step is ''"),
        (b'{"episode": 1, "x": 2}\n{"episode": 1}\n', "line 2 of file should be an object"),
        (b'{"episode": 1, "x"\n', "line 1 of file is not JSON"),
        (b'{"episode": 1, "x": 0, "x": 2}\n', "line 1 of file is not JSON: a key stands twice"),
        (b'{"episode": 1, "x": 2}\n{"episode": 1, "x": NaN}\n', "line 2 of file is not JSON: NaN"),
        (b'{"episode": 1, "x": Infinity}\n', "line 1 of file is not JSON: Infinity"),
        (b'{"episode": 1, "x": 1e999}\n', "line 1 of file: x is inf"),
        (b'{"episode": 1, "x": "2"}\n', "line 1 of file: x is '2'"),
        (b'{"episode": 1, "x": 2}\n{"episode": 1, "x": true}\n', "line 2 of file: x is True"),
        (b'{"episode": 1, "x": 2}\n{"episode": 1, "x": null}\n', "line 2 of file: x is None"),
        (b'{"episode": 1, "x": [1,2]}\n{"episode": 1, "x": [1]}\n', r"line 2 of file: x is \[1\]; .* list of 2"),
        (b'{"episode": 1, "x": [1,true]}\n', "line 1 of file: x is"),
        (b'{"episode": 1, "x": 2}\n{"episode": "1", "x": 2}\n', "line 2 of file: '1' is no name of an episode"),
        (b'{"episode": true, "x": 2}\n', "line 1 of file: True is no name"),
        (b'{"episode": 1, "x": 2}\n\n{"episode": 1, "x": 2}\n', "line 2 of file is blank"),
        (b'{"episode": 1, "x": 2}\n[1, 2]\n', "line 2 of file should be an object"),
    ],
)  # fmt: skip
def test_ambiguous_traces_are_refused(data, words):
    with pytest.raises(PsycoError, match=words):
        read_traces(data, parse("P>=0.5 [ G x >= 1 ]"), origin="file")


def test_a_forgotten_operator_is_a_note_of_a_certificate_of_traces(tmp_path):
    (tmp_path / "log.csv").write_text("episode,x\n0,2\n0,0\n1,2\n1,0\n")
    with pytest.warns(UserWarning, match="first state of an episode only"):
        certificate = psyco.verify_outcomes(tmp_path / "log.csv", "P>=0.1 [ x >= 1 ] & C>=0.5", traces=True)
    assert "x >= 1 has no temporal operator" in certificate.notes[0]


@st.composite
def logs(draw):
    """Draw the lines of a valid log of `episode,step,x`, with a typical corruption."""
    episodes = draw(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=3), min_size=1, max_size=3))
    header, rows = (
        "episode,step,x",
        [f"{e},{t},{x}" for e, path in enumerate(episodes) for t, x in enumerate(path)],
    )
    lines = [header, *rows]
    match draw(st.sampled_from(["nothing", "permute", "join", "join with header", "blank", "blank a cell", "drop"])):
        case "permute":
            return [header, *draw(st.permutations(rows))]
        case "join":
            return lines + rows
        case "join with header":
            return lines + lines
        case "blank":
            lines.insert(draw(st.integers(0, len(lines))), "")
        case "blank a cell":
            at, cell = draw(st.integers(1, len(rows))), draw(st.integers(0, 2))
            cells = lines[at].split(",")
            cells[cell] = ""
            lines[at] = ",".join(cells)
        case "drop":
            del lines[draw(st.integers(1, len(rows)))]
    return lines


@given(logs())
def test_a_log_is_judged_by_the_definition_or_its_line_is_named(lines):
    formula = "F (x >= 2 & X (x <= 1)) | G x = 1"
    found, problem = read_or_refused(read_traces, lines, parse(f"P>=0.5 [ {formula} ]"))
    if found is None:
        assert "line " in problem or len(lines) == 1
        return
    rows = [line.split(",") for line in lines[1:] if line]
    paths = [(name, [(t, int(x)) for _, t, x in path]) for name, path in groupby(rows, key=lambda row: row[0])]
    assert len({name for name, _ in paths}) == len(paths), "an episode is in one piece"
    assert all([t for t, _ in path] == [str(t) for t in range(len(path))] for _, path in paths)
    assert "" not in lines[: len(rows) + 1]
    expected = [psyco.check_path(formula, {"x": [x for _, x in path]}).satisfied for _, path in paths]
    assert found == expected


def test_one_long_episode_among_many_short_ones_fills_no_memory():
    """Side by side at one length they would be 16 million states."""
    count = 4000
    data = b"episode,x\n" + b"long,0\n" * count + b"".join(b"%d,1\n" % i for i in range(count))
    tracemalloc.start()
    judged = read_traces(data, parse("P>=0.5 [ F x > 0 ]"), origin="x")
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert judged[:, 0].tolist() == [False] + [True] * count
    assert most < 50 * 2**20


def test_two_logs_that_tell_their_episodes_apart_may_be_joined():
    requirement = parse("P>=0.5 [ G x >= 1 ]")
    joined = b"episode,x\na1,1\na1,0\nb1,1\n"
    assert read_traces(joined, requirement, origin="file")[:, 0].tolist() == [False, True]


@pytest.mark.parametrize("end", ["terminated", "truncated"])
def test_rows_after_the_end_of_an_episode_are_refused(end):
    data = f"episode,x,{end}\n1,1,0\n1,1,1\n1,5,0\n".encode()
    with pytest.raises(PsycoError, match=f"line 3 of file: the episode is {end}, and yet it has further rows"):
        read_traces(data, parse("P>=0.5 [ G x >= 1 ]"), origin="file")


def test_a_step_that_is_true_or_false_is_refused():
    with pytest.raises(PsycoError, match="line 2 of file: step is"):
        read_traces(b"episode,x,step\n1,1,false\n1,1,true\n", parse("P>=0.5 [ G x >= 1 ]"), origin="file")
