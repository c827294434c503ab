"""A watch over a file or a stream: all formats are read, nothing is lost or counted twice, errors name their line."""

import json

import numpy as np
import pytest

import psyco
from psyco._src.core.errors import RunError
from psyco._src.core.files import json_digest
from psyco._src.field import ingest, service
from psyco._src.field.arrival_order import EpisodeIds
from psyco._src.field.drift import ObservationSums, Reference, find_reference
from psyco._src.field.field_test import MonitoredConstraint
from psyco._src.field.ingest import Parser
from psyco._src.field.service import lock_state, open_session

ONE = "P>=0.85 & C>=0.98"
TWO = '"safe": P>=0.85 [ F a ]; "cost": R{x}<=25 [ C ] within [0,1000]'


def never_stop(_seconds):
    return False


def open_watch(state, requirement=ONE, *, traces=False, new_file=False):
    def make(before):
        return psyco.FieldTest(requirement, None if before else 1000, state=before)

    return open_session(make, traces=traces, state=state, new_file=new_file)


def watch_file(path, requirement=ONE, *, state=None, **options):
    """Return the session after the whole file, and its events except progress."""
    session = open_watch(state, requirement, **options)
    events = [
        event for event in session.read_file(path, follow=False, should_stop=never_stop) if event.kind != "progress"
    ]
    return session, [(event.kind, event.line, event.text) for event in events]


def watch_stream(data, requirement=ONE, *, state=None, size=7, traces=False):
    session = open_watch(state, requirement, traces=traces)
    pieces = [data[i : i + size] for i in range(0, len(data), size)]
    events = [event for event in session.read_stream(pieces, should_stop=never_stop) if event.kind != "progress"]
    return session, [(event.kind, event.line, event.text) for event in events]


def counts(session, k=0):
    return tuple(session.field_test.evidence[k].outcomes)


def total_value(session, k=1):
    """Return the sum of all values of an expectation, or of the totals of a rate."""
    constraint, (position, weight, number) = (
        session.field_test.constraints[k],
        session.field_test.evidence[k].outcomes.points,
    )
    lo, hi = constraint.value_range
    return pytest.approx(constraint.horizon * sum(number * (lo * weight + (hi - lo) * position)))


# ---- formats ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        b"1\n0\n1\n",
        b"1\r\n0\r\n1\r\n",
        b"1\n0\n1",
        b"true\nFalse\n1.0\n",
        b"\xef\xbb\xbfsatisfied\n1\n0\n1\n",
        b"episode,outcome,note\n7,1,a\n8,0,\n9,1,c\n",
        b'{"satisfied": true}\n{"satisfied": false}\n{"satisfied": 1}\n',
        b'{"episode": 1, "success": true, "x": [1]}\n{"episode": 2, "success": 0}\n{"episode": 3, "success": 1}',
    ],
)
def test_every_format_is_read_from_files_and_streams(tmp_path, data):
    path = tmp_path / "field"
    path.write_bytes(data)
    assert counts(watch_file(path)[0]) == (2, 1)
    for size in (1, 5, 1000):
        assert counts(watch_stream(data, size=size)[0]) == (2, 1)


@pytest.mark.parametrize(
    "data",
    [
        b"1,20\n0,30.5\n",
        b"cost,when,safe\n20,x,1\n30.5,y,0\n",
        b'{"safe": true, "cost": 20}\n{"cost": 30.5, "safe": false}\n',
    ],
)
def test_several_constraints_are_matched_by_name_or_by_order(tmp_path, data):
    session, _ = watch_stream(data, TWO)
    assert counts(session) == (1, 1)
    assert total_value(session) == 50.5


TRACES = b"""episode,a,x,terminated
1,0,0,0
1,1,3,0
1,0,4,1
2,0,9,0
2,0,1,1
"""


def test_traces_are_judged_first(tmp_path):
    """x adds up over the steps: 3 + 4 and 1; `a` holds in the first episode only."""
    lines = TRACES.decode().splitlines()
    as_json = "".join(
        json.dumps({k: float(v) for k, v in zip(lines[0].split(","), line.split(","), strict=True)}) + "\n"
        for line in lines[1:]
    )
    unmarked = "\n".join(line.rpartition(",")[0] for line in lines)
    for data in (TRACES, as_json.encode(), unmarked.encode()):
        for size in (3, 1000):
            session, messages = watch_stream(data, TWO, traces=True, size=size)
            assert (counts(session), total_value(session), messages) == ((1, 1), 8.0, [])
    path = tmp_path / "traces.csv"
    path.write_bytes(TRACES)
    assert total_value(watch_file(path, TWO, traces=True)[0]) == 8.0


def test_rates_come_with_their_steps_from_traces():
    def make(before):
        return psyco.FieldTest("R{x}<=0.5 [ S ] within [0,10]", 100, horizon=5, state=before)

    session = open_session(make, traces=True, state=None)
    list(session.read_stream([TRACES], should_stop=never_stop))
    assert total_value(session, 0) == 8.0


# ---- resuming --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("traces", [False, True])
def test_wherever_a_watch_is_cut_off_nothing_is_lost_or_counted_twice(tmp_path, traces):
    """The file grows by a few bytes each time, in the middle of lines too, and every process starts from the state."""
    rng = np.random.default_rng(0)
    good = rng.random(100) < 0.6
    if traces:
        rows = [f"{i},{int(g)},{end}" for i, g in enumerate(good) for end in (0, 0, 1)]
        data, requirement = "\n".join(["episode,a,truncated", *rows, ""]).encode(), "P>=0.85 [ F a ]"
    else:
        data, requirement = b"".join(b"1\n" if g else b"0\n" for g in good), ONE
    whole = tmp_path / "whole"
    whole.write_bytes(data)
    expected, messages = watch_file(whole, requirement, traces=traces)
    path, state, alarms = tmp_path / "growing", tmp_path / "state.json", []
    path.write_bytes(b"")
    at = 0
    while at < len(data):
        step = int(rng.integers(1, 20 if not traces else 150))
        with path.open("ab") as file:
            file.write(data[at : at + step])
        at += step
        session, events = watch_file(path, requirement, state=state, traces=traces)
        alarms += [event for event in events if event[0] != "warning"]
    assert session.field_test.state == expected.field_test.state
    assert session.progress.history == expected.progress.history
    assert alarms == messages != []


def test_a_stop_between_two_episodes_is_kept(tmp_path):
    path, state = tmp_path / "field", tmp_path / "state.json"
    path.write_bytes(b"1\n0\n1\n1\n")
    calls = iter(range(100))
    list(open_watch(state).read_file(path, follow=True, should_stop=lambda seconds: next(calls) >= 2))
    assert counts(open_watch(state)) == (1, 1)
    assert counts(watch_file(path, state=state)[0]) == (3, 1)


def test_an_alarm_is_raised_again_unless_it_was_handled(tmp_path):
    path, state = tmp_path / "field", tmp_path / "state.json"
    path.write_bytes(b"0\n" * 19 + b"\n0\n")

    def alarms():
        return (
            event for event in open_watch(state).read_file(path, follow=False, should_stop=never_stop) if event.alarm
        )

    being_handled = alarms()
    assert next(being_handled).line < 10
    being_handled.close()  # the consumer has failed
    again = open_watch(state).read_file(path, follow=False, should_stop=never_stop)
    assert [next(again).kind, next(again).kind] == ["alarm", "warning"]
    again.close()
    assert list(alarms()) == [], "asking for the next event acknowledges the alarm"
    assert json.loads(state.read_text())["field_test"]["episodes"] == 20
    assert list(alarms()) == []


def test_a_stream_begins_with_what_was_counted_or_has_numbers(tmp_path):
    state = tmp_path / "state.json"
    watch_stream(b"1\n0\n", state=state)
    session, messages = watch_stream(b"1\n0\n1\n", state=state)
    assert counts(session) == (2, 1)
    assert messages == [("note", 3, "the first 2 episodes were counted before")]
    with pytest.raises(RunError, match="the input has 1 episodes, 3 were counted before"):
        watch_stream(b"1\n", state=state)
    numbered = tmp_path / "numbered.json"
    watch_stream(b"episode,outcome\n5,1\n6,0\n", state=numbered)
    session, messages = watch_stream(b"episode,outcome\n6,0\n7,1\n", state=numbered)
    assert counts(session) == (2, 1)
    assert messages == [("note", 3, "the first 1 episodes were counted before")]


def test_an_incomplete_end_waits_for_the_rest(tmp_path):
    path, state = tmp_path / "field", tmp_path / "state.json"
    path.write_bytes(b"1\n0")
    session, messages = watch_file(path, state=state)
    assert (counts(session), messages) == (
        (1, 0),
        [("warning", 2, "the last line is not complete: not counted yet")],
    )
    path.write_bytes(b"1\n0\n")
    assert counts(watch_file(path, state=state)[0]) == (1, 1)
    open_ended = tmp_path / "traces.csv"
    open_ended.write_bytes(b"episode,a\n1,0\n1,1\n")
    traced = tmp_path / "traced.json"
    session, messages = watch_file(open_ended, "P>=0.5 [ F a ]", state=traced, traces=True)
    assert (session.field_test.episodes, messages[0][2]) == (
        0,
        "the last episode is not complete: not counted yet",
    )
    open_ended.write_bytes(b"episode,a\n1,0\n1,1\n2,0\n")
    assert watch_file(open_ended, "P>=0.5 [ F a ]", state=traced, traces=True)[0].field_test.episodes == 1


# ---- long episodes and lines --------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", ["stream", "file"])
def test_every_row_of_an_open_episode_is_parsed_once(tmp_path, monkeypatch, source):
    """While the episode grows, and while it does not."""
    parsed = []
    row = Parser.row
    monkeypatch.setattr(Parser, "row", lambda parser, line: parsed.append(line.number) or row(parser, line))
    data = b"episode,a\n" + b"1,0\n" * 500
    pieces = [data[i : i + 7] for i in range(0, len(data), 7)]
    if source == "stream":
        session = open_watch(None, "P>=0.5 [ F a ]", traces=True)
        list(session.read_stream(pieces, should_stop=never_stop))
    else:
        path, remaining, idle = tmp_path / "field.csv", iter(pieces), iter(range(20))
        path.write_bytes(b"")

        def grow(seconds):
            if seconds:
                with path.open("ab") as file:
                    file.write(next(remaining, b""))
            return seconds == 0.0 and path.stat().st_size == len(data) and next(idle, None) is None

        list(open_watch(None, "P>=0.5 [ F a ]", traces=True).read_file(path, follow=True, should_stop=grow))
    assert parsed == list(range(2, 502))


def test_lines_and_episodes_have_a_largest_size(monkeypatch):
    monkeypatch.setattr(ingest, "MAX_LINE_BYTES", 100)
    monkeypatch.setattr(ingest, "MAX_EPISODE_BYTES", 1000)
    with pytest.raises(RunError, match="line 2 of the input does not end within 100 bytes"):
        watch_stream(b"1\n" + b"1" * 200)
    with pytest.raises(RunError, match="line 2 of the input does not end within 100 bytes"):
        watch_stream(b"1\n" + b"1" * 200 + b"\n", size=1000)
    endless = ingest.LineSplitter(ingest.ReadPosition(), "the input")  # its memory must not grow until an end comes
    with pytest.raises(RunError, match="line 1 of the input does not end within 100 bytes"):
        list(endless.feed(b"1" * 200, at_end=False))
    rows = b"episode,a,truncated\n" + b"1,1,0\n" * 100 + b"1,1,1\n"
    assert counts(watch_stream(rows, "P>=0.5 [ F a ]", traces=True)[0]) == (1, 0)
    with pytest.raises(RunError, match="line 103 of the input: the episode has more than 1,000 bytes; record fewer"):
        watch_stream(rows + b"2,1,0\n" * 200, "P>=0.5 [ F a ]", traces=True)


def test_intervals_are_computed_only_where_they_are_shown(monkeypatch):
    computed = []
    interval = MonitoredConstraint.interval
    monkeypatch.setattr(
        MonitoredConstraint, "interval", lambda self, evidence: computed.append(1) or interval(self, evidence)
    )
    session, _ = watch_stream(b"1\n" * 3000, size=1000)
    assert computed == []
    assert len(session.points) == len(session.points) == len(computed) <= service.MAX_HISTORY_POINTS


def test_a_stopped_or_failing_watch_has_counted_all_that_came_before(tmp_path):
    state = tmp_path / "state.json"
    with pytest.raises(RunError, match="line 1501 of the input"):
        watch_stream(b"1\n" * 1500 + b"x\n" + b"0\n", state=state, size=10_000)
    assert open_watch(state).field_test.episodes == 1500


# ---- errors in a source ----------------------------------------------------------------------------------------


def test_gaps_and_repetitions_are_reported_and_late_episodes_are_counted():
    data = b"episode,outcome\n3,1\n4,1\n7,1\n6,1\n6,0\n3,0\n8,1\n11,1\n1,1\n1,0\n"
    session, messages = watch_stream(data)
    assert counts(session) == (7, 0)
    assert [(line, text.partition(";")[0]) for _, line, text in messages] == [
        (4, "episodes 5 to 6 are missing"),
        (5, "episode 6 comes late"),
        (6, "episode 6 was counted before"),
        (7, "episode 3 was counted before"),
        (9, "episodes 9 to 10 are missing"),
        (10, "episode 1 comes late"),
        (11, "episode 1 was counted before"),
    ]
    assert session.progress.ids == EpisodeIds(1, 11, ((2, 2), (5, 5), (9, 10)))


@pytest.mark.parametrize(
    "data",
    [
        b"episode,outcome\n-1,1\n0.0,1\n1.0,1\n0,1\n",
        b'{"episode": -1, "outcome": 1}\n{"episode": 0.0, "outcome": 1}\n{"episode": 1, "outcome": 1}\n'
        b'{"episode": "0", "outcome": 1}\n',
    ],
)
def test_numbers_of_episodes_are_recognised_as_tables_write_them(data):
    session, messages = watch_stream(data)
    assert counts(session) == (3, 0)
    assert [text for _, _, text in messages] == ["episode 0 was counted before; it is not counted again"]


def test_episodes_with_names_are_all_counted():
    data = b'{"episode": "a", "outcome": 1}\n{"episode": true, "outcome": 1}\n{"episode": 1e30, "outcome": 1}\n'
    assert counts(watch_stream(data)[0]) == (3, 0)


def test_the_number_of_remembered_gaps_is_limited(monkeypatch):
    monkeypatch.setattr("psyco._src.field.arrival_order.MAX_GAPS", 2)
    ids = EpisodeIds()
    for number in (1, 3, 5, 7):
        ids, _, _ = ids.add(number)
    assert ids.missing == ((4, 4), (6, 6))


@pytest.mark.parametrize(
    ("requirement", "data", "words"),
    [
        (ONE, b"1\n2\n", "line 2 of the input: an outcome is 0 or 1"),
        (ONE, b"1\n0,1\n", "line 2 of the input has 2 values, the requirement 1 constraints"),
        (ONE, b"fail\n1\n", "line 1 of the input: the columns of the outcomes are not known"),
        (ONE, b"satisfied,satisfied\n1,1\n", "line 1 .* two columns are called 'satisfied'"),
        (ONE, b"satisfied,x\n1,1\n1\n", "line 3 of the input has 1 cells, the header has 2"),
        (ONE, b"satisfied\n1\nsatisfied\n", "line 3 of the input repeats the header"),
        (ONE, b'satisfied\n"1\n', "line 2 of the input is not CSV"),
        (ONE, b'{"satisfied": tru}\n', "line 1 of the input is not JSON"),
        (ONE, b'{"satisfied": 1, "satisfied": 0}\n', "a key occurs twice"),
        (ONE, b'{"satisfied": null}\n', "line 1 .* got None"),
        (ONE, b'{"failed": 1}\n', "line 1 .* are not known"),
        (ONE, b"1\n\xff\n", "line 2 of the input is not text"),
        (TWO, b"1,2000\n", "line 1 of the input: the value 2000.0 of cost lies outside of its range"),
        (TWO, b"1,nan\n", "line 1"),
        (TWO, b"1,1\n1,x\n", "line 2 of the input: a value is a number; got 'x'"),
        ("R{x}<=0.5 [ S ] within [0,1]", b"1\n", "a rate needs the steps"),
    ],
)
def test_garbage_is_an_error_with_its_line(requirement, data, words):
    def make(before):
        return psyco.FieldTest(requirement, horizon=5, state=before)

    with pytest.raises(RunError, match=words):
        list(open_session(make, traces=False, state=None).read_stream([data], should_stop=never_stop))


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"a,x\n1,1\n", "line 2 of the input has no 'episode'"),
        (b"episode,a,x,terminated\n1,0,0,1\n2,0,1,0\n2,0,y,1\n", "line 4 of the input: x is 'y'"),
        (
            b"episode,a,x,step\n1,0,0,0\n2,0,1,0\n2,0,1,2\n3,0,0,0\n",
            "line 4 of the input: step is 2 where 1 should",
        ),
        (b"episode,a,terminated\n1,0,1\n", "unknown signal 'x'"),
        (b"episode,a,x\n1,0,0\n\n1,0,0\n", "line 3 of the input is blank"),
        (
            b'{"episode": 1, "a": 0, "x": 1}\n{"episode": 1, "a": 0, "x": "y"}\n',
            "line 2 of the input: x is 'y'",
        ),
    ],
)
def test_garbage_in_traces_is_an_error_with_its_line(data, words):
    with pytest.raises(RunError, match=words):
        watch_stream(data, TWO, traces=True)


def test_after_garbage_is_corrected_the_watch_goes_on_there(tmp_path):
    path, state = tmp_path / "field", tmp_path / "state.json"
    path.write_bytes(b"1\n0\nx\n1\n")
    with pytest.raises(RunError, match="line 3"):
        watch_file(path, state=state)
    assert open_watch(state).field_test.episodes == 2
    path.write_bytes(b"1\n0\n1\n1\n")
    assert counts(watch_file(path, state=state)[0]) == (3, 1)


def test_blank_lines_are_warnings():
    session, messages = watch_stream(b"1\n\n0\n \n")
    assert counts(session) == (1, 1)
    assert [(kind, line) for kind, line, _ in messages] == [("warning", 2), ("warning", 4)]


def test_a_file_that_shrank_or_was_replaced_is_refused_unless_declared_new(tmp_path):
    path, state = tmp_path / "field", tmp_path / "state.json"
    path.write_bytes(b"1\n0\n1\n")
    watch_file(path, state=state)
    path.write_bytes(b"1\n")
    with pytest.raises(RunError, match="has become shorter"):
        watch_file(path, state=state)
    path.write_bytes(b"1\n1\n1\n1\n")
    with pytest.raises(RunError, match="is not the file that was followed"):
        watch_file(path, state=state)
    assert counts(watch_file(path, state=state, new_file=True)[0]) == (6, 1)
    assert counts(watch_file(path, state=state)[0]) == (6, 1)
    with pytest.raises(RunError, match="no file of that name"):
        watch_file(tmp_path / "missing")


def test_a_file_that_is_replaced_while_it_is_followed_is_noticed(tmp_path):
    path, state = tmp_path / "field", tmp_path / "state.json"
    path.write_bytes(b"1\n0\n1\n")

    def replaced_meanwhile(seconds):
        if seconds:
            path.write_bytes(b"0\n0\n1\n1\n1\n")

    with pytest.raises(RunError, match="is not the file that was followed"):
        list(open_watch(state).read_file(path, follow=True, should_stop=replaced_meanwhile))
    assert counts(open_watch(state)) == (2, 1)
    with pytest.raises(RunError, match="is not the file that was followed"):
        watch_file(path, state=state)


def test_a_state_is_of_a_file_or_of_a_stream(tmp_path):
    path, of_file, of_stream = tmp_path / "field", tmp_path / "file.json", tmp_path / "stream.json"
    path.write_bytes(b"1\n0\n1\n")
    watch_file(path, state=of_file)
    watch_stream(b"1\n0\n1\n", state=of_stream)
    with pytest.raises(RunError, match=r"file\.json has followed a file"):
        watch_stream(b"1\n0\n1\n1\n", state=of_file)
    with pytest.raises(RunError, match=r"stream\.json has counted a stream"):
        watch_file(path, state=of_stream)
    assert (
        counts(watch_file(path, state=of_file)[0]) == counts(watch_stream(b"1\n0\n1\n", state=of_stream)[0]) == (2, 1)
    )
    assert counts(watch_file(path, state=of_stream, new_file=True)[0]) == (4, 2)


def test_a_state_belongs_to_its_requirement_policy_and_kind_of_source(tmp_path):
    path, state = tmp_path / "field", tmp_path / "state.json"
    path.write_bytes(b"1\n")
    watch_file(path, state=state)
    with pytest.raises(RunError, match="another requirement"):
        watch_file(path, "P>=0.9 & C>=0.98", state=state)
    with pytest.raises(RunError, match="begun with --outcomes"):
        watch_file(path, state=state, traces=True)
    content = json.loads(state.read_text())
    assert content["policy"] is None
    for damaged in (b"{}", b"[]", b"x", json.dumps(content | {"tail": "7"}).encode()):
        state.write_bytes(damaged)
        with pytest.raises(RunError, match=r"state\.json"):
            watch_file(path, state=state)


@pytest.mark.parametrize(
    ("where", "value"),
    [
        (["format"], 3),
        (["progress"], None),
        (["progress", "stride"], 0),
        (["progress", "stride"], 1.5),
        (["progress", "position", "offset"], -1),
        (["progress", "position", "line"], "1"),
        (["progress", "ids", "first"], 3),
        (["progress", "ids", "missing"], [[1, 2, 3]]),
        (["progress", "history", 0, "intervals"], []),
        (["progress", "history", 0, "lost"], [1]),
        (["progress", "alarms"], [{"episode": 1}]),
        (["progress", "drift", "episodes"], 40),
        (["field_test", "constraints", 0, "outcomes"], [-1, 0]),
        (["field_test", "ranges"], [[0, 2, 1]]),
    ],
)
def test_a_state_from_a_stranger_is_refused_where_anything_is_of_another_kind(tmp_path, where, value):
    path, state = tmp_path / "field", tmp_path / "state.json"
    path.write_bytes(b"1\n")
    watch_file(path, state=state)
    content = json.loads(state.read_text())
    del content["checksum"]
    *outer, last = where
    place = content
    for key in outer:
        place = place[key]
    assert place[last] != value
    place[last] = value
    state.write_text(json.dumps(content | {"checksum": json_digest(content)}))  # which anybody can compute
    with pytest.raises(RunError, match=r"damaged|format|begun with other"):
        watch_file(path, state=state)


def test_two_processes_do_not_share_a_state(tmp_path):
    with (
        lock_state(tmp_path / "s"),
        pytest.raises(RunError, match="in use by another process"),
        lock_state(tmp_path / "s"),
    ):
        pass


def test_the_history_is_thinned_out(monkeypatch):
    monkeypatch.setattr(service, "MAX_HISTORY_POINTS", 8)
    session, _ = watch_stream(b"1\n" * 100, size=1000)
    episodes = [point.episode for point in session.progress.history]
    assert len(episodes) <= 8 and episodes == sorted(episodes) and episodes[-1] > 80


# ---- drift of observations ---------------------------------------------------------------------------------------


REFERENCE = Reference(100, np.array([0.0, 5.0, 1.0]), np.array([1.0, 2.0, 0.0]))


@pytest.mark.parametrize(
    ("shift", "drifted"),
    [([0, 0, 0], []), ([0.5, 1, 0], []), ([1.5, 0, 0], [0]), ([0, -3, 0], [1]), ([0, 0, 0.1], [2])],
)
def test_an_input_that_drifts_is_named(shift, drifted):
    rng, drift = np.random.default_rng(0), ObservationSums()
    for _ in range(50):
        seen = REFERENCE.mean + REFERENCE.spread * rng.normal(size=(20, 3)) + np.array(shift)
        drift = drift.update(REFERENCE, seen)
    assert list(drift.drifted(REFERENCE)) == drifted


def test_rare_but_far_values_are_drift_too():
    drift = ObservationSums()
    for _ in range(50):
        seen = np.tile(REFERENCE.mean, (10, 1))
        seen[0, 0] = 5.0  # one in ten; its mean moves by half a spread
        drift = drift.update(REFERENCE, seen)
    (text,) = drift.drifted(REFERENCE).values()
    assert "obs[0] has drifted since certification: mean 0.5 in the field, 0 ± 1" in text
    assert "10% of its values are more than 4 spreads away" in text


@pytest.mark.parametrize("vector", [True, False])
def test_drift_in_traces_is_a_warning_once(tmp_path, vector):
    session = open_watch(None, "P>=0.5 [ F a ]", traces=True)
    session.set_reference(Reference(100, np.array([0.0, 0.0]), np.array([1.0, 1.0])))
    rows = [
        {"episode": i, "a": True, "truncated": True}
        | ({"obs": [0.1, 3.0]} if vector else {"obs[0]": 0.1, "obs[1]": 3.0})
        for i in range(60)
    ]
    data = "".join(json.dumps(row) + "\n" for row in rows).encode()
    events = [event for event in session.read_stream([data], should_stop=never_stop) if event.kind == "warning"]
    assert [(event.line, event.text[:15]) for event in events] == [(30, "obs[1] has drif")]
    assert session.progress.drifted == (1,)


def test_observations_of_another_size_are_refused_before_anything_is_counted(tmp_path):
    session = open_watch(tmp_path / "state.json", "P>=0.5 [ F a ]", traces=True)
    session.set_reference(Reference(100, np.array([0.0, 0.0]), np.array([1.0, 1.0])))
    rows = b"episode,a,obs[0],obs[1],truncated\n1,1,0,0,1\n"
    list(session.read_stream([rows], should_stop=never_stop))
    with pytest.raises(RunError, match="line 2 of the input: an observation has 3 entries"):
        list(session.read_stream([b"episode,a,obs[0],obs[1],obs[2],truncated\n2,1,0,0,0,1\n"], should_stop=never_stop))
    assert open_watch(tmp_path / "state.json", "P>=0.5 [ F a ]", traces=True).field_test.episodes == 1


def test_a_run_keeps_the_observations_of_its_policy(tmp_path):
    certificate = tmp_path / "certificate.json"
    assert find_reference(certificate, "abc") is None
    seen = {"policy": "abc", "episodes": 3, "mean": [1.0], "spread": [2.0]}
    kept = tmp_path / "episodes.json"
    kept.write_text(json.dumps({"observations": seen}))
    assert find_reference(certificate, "abc") == Reference(3, np.array([1.0]), np.array([2.0]))
    assert find_reference(certificate, "another") is None
    for wrong in ({"mean": ["x"]}, {"spread": [1.0, 2.0]}, {"episodes": None}):
        kept.write_text(json.dumps({"observations": seen | wrong}))
        with pytest.raises(RunError, match="damaged"):
            find_reference(certificate, "abc")
