"""A watch over parallel episodes counts them in the order of their beginning, and waits for those that still run."""

import json

import numpy as np
import pytest
from scipy import stats

import psyco
from psyco._src.core.errors import RunError
from psyco._src.core.files import json_digest
from psyco._src.field import arrival_order
from psyco._src.field.service import open_session
from tests.verification.test_recorded_columns import play_in_parallel, table

ONE = "P>=0.85 & C>=0.98"


def never_stop(_seconds):
    return False


def watch(data, requirement=ONE, *, every=1000, state=None, size=2**16, **options):
    """Return the session after a stream, and its events except progress."""

    def make(before):
        return psyco.FieldTest(requirement, None if before else every, state=before)

    session = open_session(make, traces=options.pop("traces", False), state=state, **options)
    pieces = [data[i : i + size] for i in range(0, len(data), size)]
    events = [event for event in session.read_stream(pieces, should_stop=never_stop) if event.kind != "progress"]
    return session, [(event.kind, event.line, event.text) for event in events]


def counts(session):
    return tuple(session.field_test.evidence[0].outcomes)


def test_quick_failures_of_parallel_robots_raise_no_alarm():
    """True P 0.87, required 0.85, a false alarm in 100,000 episodes. Fail by chance with probability below 1e-6."""
    rng, alarms = np.random.default_rng(0), {"as they end": 0, "as they began": 0}
    for _ in range(20):
        ended = play_in_parallel(rng, 200, fail_time=0.05, success_time=40.0, p=0.87)
        for order, columns in (("as they end", ("outcome",)), ("as they began", ("index", "outcome"))):
            session, _ = watch(table(ended, columns), every=100_000)
            assert session.field_test.episodes == 200
            alarms[order] += bool(session.alarms)
    assert alarms["as they end"] >= 10, "the bias without an index"
    assert alarms["as they began"] <= stats.binom.isf(1e-6, 20, 200 / 100_000)


def test_an_outcome_waits_until_all_that_began_before_have_ended():
    session, messages = watch(b"index,outcome\n1,0\n2,1\n4,0\n0,1\n")
    assert counts(session) == (2, 1)
    assert [held.number for held in session.order.state.held] == [4]
    assert messages == [("warning", 5, "1 outcome is held back until index 3 has ended, which began before")]
    session, messages = watch(b"index,outcome\n1,0\n2,1\n4,0\n0,1\n3,1\n")
    assert (counts(session), messages) == ((3, 2), [])


@pytest.mark.parametrize("size", [1, 13, 1000])
def test_the_result_is_that_of_the_sorted_recording(size):
    ended = play_in_parallel(np.random.default_rng(1), 600, fail_time=9.0, success_time=3.0, p=0.7)
    one, _ = watch(table(ended, ("index", "outcome")), size=size)
    other, _ = watch(table(sorted(ended), ("outcome",)))
    assert one.field_test.state == other.field_test.state
    assert [(a.episode, a.lost) for a in one.alarms] == [(a.episode, a.lost) for a in other.alarms] != []
    assert one.points == other.points


def test_what_is_held_back_survives_an_interruption(tmp_path):
    rng = np.random.default_rng(2)
    ended = play_in_parallel(rng, 300, fail_time=9.0, success_time=3.0, p=0.7)
    lines = [f"{line}\n" for line in table(ended, ("index", "outcome")).decode().splitlines()]
    whole, _ = watch("".join(lines).encode())
    path, state = tmp_path / "field.csv", tmp_path / "state.json"
    at = 0
    while at < len(lines):
        step = int(rng.integers(1, 40))
        with path.open("a") as file:
            file.write("".join(lines[at : at + step]))
        at += step
        session = open_session(lambda before: psyco.FieldTest(ONE, None if before else 1000, state=before),
                               traces=False, state=state)  # fmt: skip
        events = session.read_file(path, follow=False, should_stop=never_stop)
        for event in events:
            if event.alarm and rng.random() < 0.5:
                break  # the consumer has failed: the alarm comes again
    session, _ = finish(path, state)
    assert session.field_test.state == whole.field_test.state
    assert [a.episode for a in session.alarms] == [a.episode for a in whole.alarms] != []


def finish(path, state):
    session = open_session(lambda before: psyco.FieldTest(ONE, state=before), traces=False, state=state)
    return session, list(session.read_file(path, follow=False, should_stop=never_stop))


def test_an_episode_that_never_ends_does_not_block_silently(tmp_path):
    state = tmp_path / "state.json"
    data = b"index,outcome\n" + b"".join(b"%d,1\n" % i for i in range(1, 9))
    with pytest.raises(RunError, match=r"line 6 of the input: index 5 has ended, but index 0 has not, so more than 5 "):
        watch(data, in_flight=5, state=state)
    held = json.loads(state.read_text())["progress"]["order"]["held"]
    assert [each["number"] for each in held] == [1, 2, 3, 4]
    session, messages = watch(data + b"0,0\n", in_flight=100, state=state)
    assert (counts(session), messages) == ((8, 1), [("note", 6, "the first 4 episodes were counted before")])
    with pytest.raises(RunError, match="in flight is 1 to 100,000, got 0"):
        watch(data, in_flight=0)


def test_repetitions_and_the_first_index(tmp_path):
    state = tmp_path / "state.json"
    data = b"index,outcome\n7,1\n5,1\n5,1\n7,1\n6,1\n3,0\n"
    session, messages = watch(data, first_index=5, state=state)
    assert counts(session) == (3, 0)
    assert [text for _, _, text in messages] == [
        "index 5 was counted before; it is not counted again",
        "index 7 was counted before; it is not counted again",
        "index 3 is not counted: the watch begins with index 5",
    ]
    assert counts(watch(b"index,outcome\n8,1\n", first_index=5, state=state)[0]) == (4, 0)
    assert counts(watch(b"index,outcome\n9,1\n", state=state)[0]) == (5, 0)
    with pytest.raises(RunError, match="was begun with index 5; leave out --first-index"):
        watch(b"index,outcome\n9,1\n", first_index=6, state=state)


@pytest.mark.parametrize("size", [1, 1000])
@pytest.mark.parametrize("first", [0, 1])  # with 1, the outcomes are held back
def test_a_repetition_with_another_outcome_is_an_error(tmp_path, size, first):
    state, lines = tmp_path / "state.json", [b"index,outcome\n", *(b"%d,1\n" % i for i in range(first, 4))]
    again = rf"line {len(lines) + 1} of the input: index 2 comes again with outcome 0; on line {4 - first} it was 1\."
    with pytest.raises(RunError, match=again):
        watch(b"".join([*lines, b"2,0\n"]), size=size, state=state)
    for _ in range(2):  # the outcomes are known after an interruption, and the error comes again
        with pytest.raises(RunError, match="line 2 of the input: index 2 comes again with outcome 0"):
            watch(b"index,outcome\n2,0\n", size=size, state=state)
    with pytest.raises(RunError, match="line 4 of the input: index 2 comes again with outcome 0"):
        watch(b"index,outcome\n2,1\n4,1\n2,0\n", size=size, state=state)
    session, _ = watch(b"index,outcome\n0,1\n2,1\n", size=size, state=state)
    assert counts(session) == (5, 0)


def test_the_latest_outcomes_are_remembered(monkeypatch, tmp_path):
    monkeypatch.setattr(arrival_order, "MAX_REMEMBERED", 2)
    session, _ = watch(b"index,outcome\n0,1\n1,1\n2,1\n", size=1, state=tmp_path / "state.json")
    assert [episode.number for episode in session.order.state.counted] == [1, 2]
    _, messages = watch(b"index,outcome\n3,1\n0,0\n", size=1, state=tmp_path / "state.json")
    assert [text for _, _, text in messages] == ["index 0 was counted before; it is not counted again"]


def test_times_only_show_that_the_order_is_another():
    session, messages = watch(b"started,outcome\n1.5,1\n2,0\n2.5,1\n")
    assert (counts(session), messages) == ((2, 1), [])
    for second, how in ((1, "before"), (1.5, "at the same time as")):
        with pytest.raises(
            RunError, match=rf"line 3 of the input: the episode began {how} that of line 2.*column index"
        ):
            watch(f"started,outcome\n1.5,1\n{second},1\n".encode())


def test_times_are_compared_over_an_interruption(tmp_path):
    state = tmp_path / "state.json"
    watch(b'{"outcome": 1, "episode": 1, "started": "2026-11-18T05:00:00Z"}\n', state=state)
    with pytest.raises(RunError, match="began before that of line 1"):
        watch(b'{"outcome": 1, "episode": 2, "started": "2026-11-18T04:00:00Z"}\n', state=state)
    with pytest.raises(RunError, match="started is a number, on line 1 a time with a zone"):
        watch(b'{"outcome": 1, "episode": 2, "started": 7}\n', state=state)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b'{"outcome": 1, "index": 0}\n{"outcome": 1}\n', "line 2 of the input has no 'index', unlike"),
        (b'{"outcome": 1}\n{"outcome": 1, "index": 0}\n', "line 2 of the input has 'index', unlike"),
        (b'{"outcome": 1, "index": null}\n', "line 1 of the input: index is None"),
        (b"index,outcome\n0,1\n-1,1\n", "line 3 of the input: index is '-1'"),
        (b"started,outcome\nsoon,1\n", "line 2 of the input: started is 'soon'"),
    ],
)
def test_an_order_that_is_not_known_is_refused(data, words):
    with pytest.raises(RunError, match=words):
        watch(data)


def test_a_constraint_may_be_called_index():
    session, _ = watch(b"index,other\n1,0\n0,1\n1,1\n", '"index": P>=0.85 [ F a ]')
    assert counts(session) == (2, 1)


def test_traces_wait_too_and_their_index_stands_in_every_row():
    data = b"episode,a,index,truncated\nx,0,1,0\nx,0,1,1\ny,1,0,1\n"
    session, messages = watch(data, "P>=0.85 [ F a ]", traces=True)
    assert (counts(session), messages) == ((1, 1), [])
    with pytest.raises(RunError, match="line 3 of the input: index is '2', on line 2 '1'"):
        watch(data.replace(b"0,1,1\n", b"0,2,1\n"), "P>=0.85 [ F a ]", traces=True)


def test_a_trace_without_an_end_is_an_error_or_violated():
    data = b"episode,a,terminated\nx,1,0\nx,1,1\ny,1,0\ny,1,0\nz,1,1\nw,1,0\n"
    with pytest.raises(
        RunError, match=r"line 5 of the input: episode 'y' is not terminated at its end.*--cut violated"
    ):
        watch(data, "P>=0.85 [ F a ]", traces=True)
    session, _ = watch(data, "P>=0.85 [ F a ]", traces=True, cut="violated")
    assert counts(session) == (2, 2)


@pytest.mark.parametrize(
    ("where", "value"),
    [
        (["next_index"], 4),
        (["first_index"], 3),
        (["held", 0, "number"], 1),
        (["held", 0, "values"], [[7.0, 1]]),
        (["held", 0, "values"], [[1.0, 2]]),
        (["held", 0, "values"], [[1.0, 1], [1.0, 1]]),
        (["held", 0, "values"], []),
        (["held", 0, "values"], ["1"]),
        (["counted", 0, "number"], 5),
        (["counted", 0, "values"], [[7.0, 1]]),
        (["column"], "other"),
        (["started"], "soon"),
    ],
)
def test_a_damaged_order_is_refused(tmp_path, where, value):
    state = tmp_path / "state.json"
    watch(b"index,outcome\n0,1\n1,1\n3,1\n4,1\n", state=state)
    content = json.loads(state.read_text())
    del content["checksum"]
    *outer, last = where
    place = content["progress"]["order"]
    for key in outer:
        place = place[key]
    assert place[last] != value
    place[last] = value
    state.write_text(json.dumps(content | {"checksum": json_digest(content)}))
    with pytest.raises(RunError, match=r"damaged|started is"):
        watch(b"index,outcome\n", state=state)
