"""The order of recorded episodes: of their beginning, with none missing, whatever the order in which they end."""

import heapq
from itertools import cycle

import numpy as np
import pytest
from scipy import stats

import psyco
from psyco._src.core.errors import RunError
from psyco._src.logic.requirement import outcome_requirement
from psyco._src.verification.outcomes import verify_outcomes
from psyco._src.verification.recordings import read_outcomes

ROBOTS, REQUIRED, TRUE_P = 64, "P>=0.9 & C>=0.9", 0.8


def play_in_parallel(rng, count, *, fail_time, success_time, p):
    """Return the episodes of parallel robots as they end: index, time of beginning, outcome."""
    running = [(float(rng.random()), robot) for robot in range(ROBOTS)]  # robots begin within the first unit of time
    heapq.heapify(running)
    begun = []
    while len(begun) < count:
        now, robot = heapq.heappop(running)
        good = bool(rng.random() < p)
        end = now + (success_time if good else fail_time) * (0.5 + float(rng.random()))
        begun.append((end, len(begun), now, good))
        heapq.heappush(running, (end, robot))
    return [(index, started, good) for _, index, started, good in sorted(begun)]


def table(episodes, columns):
    """Return a CSV with these columns."""
    cells = {"index": "{0}", "started": "{1!r}", "outcome": "{2:d}"}
    rows = [",".join(cells[name] for name in columns).format(*episode) for episode in episodes]
    return "\n".join([",".join(columns), *rows]).encode()


def test_slow_failures_of_parallel_robots_do_not_lead_to_a_false_certificate():
    """True P 0.8, required 0.9, δ 0.1. Fail by chance with probability below 1e-6."""
    rng, runs = np.random.default_rng(0), 40
    stated = cycle([("index", "outcome"), ("outcome", "started"), ("started", "index", "outcome")])
    wanted = outcome_requirement(REQUIRED)
    satisfied = {"as they end": 0, "as they began": 0}
    for _, columns in zip(range(runs), stated, strict=False):
        ended = play_in_parallel(rng, 600, fail_time=40.0, success_time=1.0, p=TRUE_P)
        for order, names in (("as they end", ("outcome",)), ("as they began", columns)):
            found = verify_outcomes(read_outcomes(table(ended, names), wanted, origin="x"), wanted)
            satisfied[order] += found.verdict.name == "SATISFIED"
    assert satisfied["as they end"] >= 36, "the bias that a recording without these columns has"
    assert satisfied["as they began"] <= stats.binom.isf(1e-6, runs, 0.1)


def outcomes(tmp_path, text, requirement="P>=0.5 & C>=0.9", **settings):
    file = tmp_path / "recorded.csv"
    file.write_text(text)
    return psyco.verify_outcomes(file, requirement, **settings)


def test_outcomes_are_sorted_and_the_certificate_says_so(tmp_path):
    plain = outcomes(tmp_path, "outcome\n1\n0\n1\n1\n")
    by_index = outcomes(tmp_path, "index,outcome\n1,0\n0,1\n3,1\n2,1\n")
    by_time = outcomes(
        tmp_path,
        "outcome,started\n0,2026-11-18T05:00:01Z\n1,2026-11-18T06:00:00+01:00\n1,2026-11-18T06:00:00Z\n"
        "1,2026-11-18T05:30Z\n",
    )
    assert plain.outcomes == by_index.outcomes == by_time.outcomes
    assert "assumed to be the order in which the episodes began, with none left out because" in str(plain)
    assert "order in which they began (index), with none left out" in str(by_index)
    assert "order in which they began (started)" in str(by_time) and "assumed that none was left out" in str(by_time)
    assert "assumed to be the order in which" in str(psyco.verify_outcomes([1, 0, 1], "P>=0.5"))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("index,outcome\n0,1\n2,1\n", "index 1 is missing"),
        ("index,outcome\n1,1\n2,1\n", "index 0 is missing"),
        ("index,outcome\n0,1\n3,1\n9,1\n5,0\n", "indices 1 to 2, 4 and 6 to 8 are missing.*may still run"),
        ("index,outcome\n0,1\n2,1\n4,1\n6,0\n9,0\n", "indices 1, 3, 5 and 2 more are missing"),
        ("index,outcome\n0,1\n1,1\n0,1\n", "line 4 of .*: index 0 is also on line 2"),
        ("index,outcome\n0,1\nx,1\n", "line 3 of .*: index is 'x'; it counts the episodes"),
        ("index,outcome\n-1,1\n0,1\n", "line 2 of .*: index is '-1'"),
        ("index,outcome\n0,1\n,1\n", "line 3 of .*: index is ''"),
        ("started,outcome\n1,1\n1.0,1\n", "line 3 of .*: the episode began at the same time as that of line 2"),
        ("started,outcome\n1,1\nsoon,1\n", "line 3 of .*: started is 'soon'"),
        ("started,outcome\n1,1\n2026-11-18,1\n", "line 3 of .*: started is a time without a zone, on line 2 a number"),
        ("started,outcome\n2026-11-18,1\n2026-11-18T05:00Z,1\n", "line 3 of .*: started is a time with a zone"),
        ("index,started,outcome\n0,5,1\n1,4,1\n", "line 3 of .*: the episode has a higher index than that of line 2"),
    ],
)
def test_gaps_duplicates_and_contradictions_are_refused(tmp_path, text, words):
    with pytest.raises(RunError, match=words):
        outcomes(tmp_path, text)


def test_gaps_after_the_last_episode_that_is_tested_do_not_matter(tmp_path):
    text = "index,outcome\n" + "".join(f"{i},1\n" for i in range(40) if i not in (30, 33))
    with pytest.raises(RunError, match=r"indices 30 and 33 are missing.*max_episodes=30, --max-episodes 30"):
        outcomes(tmp_path, text)
    assert outcomes(tmp_path, text, max_episodes=30).max_episodes == 30
    with pytest.raises(RunError, match="indices 30 and 33 are missing") as fixed:
        outcomes(tmp_path, text, max_episodes=31, method="fixed")
    assert "--max-episodes" not in str(fixed.value), "the number would depend on the outcomes"
    with pytest.raises(RunError, match="indices 30 and 33 are missing") as narrow:
        outcomes(tmp_path, text, "P=?", width=0.1)
    assert "--max-episodes" not in str(narrow.value), "nor is an answer of a given width valid at such a number"


def test_the_first_index_may_be_another(tmp_path):
    text = "index,outcome\n71,0\n70,1\n"
    assert outcomes(tmp_path, text, first_index=70).findings[0].episodes == 2
    with pytest.raises(RunError, match="indices 0 to 69 are missing"):
        outcomes(tmp_path, text)
    with pytest.raises(RunError, match=r"line 3 of .*: index is 70, and the first one is 71"):
        outcomes(tmp_path, text, first_index=71)
    with pytest.raises(RunError, match="first_index must be a whole number of at least 0"):
        outcomes(tmp_path, text, first_index=-1)


def test_nanoseconds_since_1970_keep_their_order(tmp_path):
    now = 1_763_443_200_123_456_789
    text = f"started,outcome\n{now + 1},0\n{now},1\n"
    plain = outcomes(tmp_path, "outcome\n1\n0\n")
    assert outcomes(tmp_path, text).outcomes == plain.outcomes


def traces(tmp_path, text, formula="G x >= 1", **settings):
    file = tmp_path / "recorded.csv"
    file.write_text(text)
    return psyco.verify_outcomes(file, f"P>=0.5 [ {formula} ] & C>=0.9", traces=True, **settings)


def test_traces_are_sorted_by_the_beginning_of_their_episodes(tmp_path):
    plain = traces(tmp_path, "episode,x\na,1\na,0\nb,1\n")
    for text in (
        "episode,x,index\nb,1,1\na,1,0\na,0,0\n",
        f"episode,x,started\nb,1,{10**18 + 1}\na,1,{10**18}\na,0,{10**18}\n",
        '{"episode": 1, "x": 1, "index": 1}\n{"episode": 2, "x": 0, "index": 0}\n',
    ):
        assert traces(tmp_path, text).outcomes == plain.outcomes
    with pytest.raises(RunError, match=r"line 3 of .*: index is '1', on line 2 '0'; it is the same in all rows"):
        traces(tmp_path, "episode,x,index\na,1,0\na,0,1\n")
    with pytest.raises(RunError, match="index 0 is missing"):
        traces(tmp_path, "episode,x,index\na,1,1\na,0,1\n")
    assert traces(tmp_path, "episode,index\na,1\na,5\n", "G index >= 1").episodes == 1, "here it is a signal"


# ---- episodes without an end ----------------------------------------------------------------------------------------

CUT = "episode,x,terminated,truncated\na,1,0,0\na,1,0,1\nb,1,0,0\nb,1,0,0\nc,1,1,0\n"


def test_an_episode_that_ends_with_neither_column_is_an_error(tmp_path):
    with pytest.raises(
        RunError, match=r"line 5 of .*: episode 'b' ends neither terminated nor truncated.*--cut violated"
    ):
        traces(tmp_path, CUT)
    with pytest.raises(RunError, match=r"line 4 of .*: episode 'b' is not terminated at its end"):
        traces(tmp_path, "episode,x,terminated\na,1,0\na,1,1\nb,1,0\n")
    json_lines = '{"episode": 1, "x": 1, "truncated": true}\n{"episode": 2, "x": 1, "truncated": false}\n'
    with pytest.raises(RunError, match=r"line 2 of .*: episode 2 is not truncated"):
        traces(tmp_path, json_lines)


def test_an_episode_without_an_end_may_count_as_violated(tmp_path):
    found = traces(tmp_path, CUT, cut="violated")
    assert found.outcomes == psyco.verify_outcomes([1, 0, 1], "P>=0.5").outcomes
    assert "1 episode without an end count" in str(found)
    file = tmp_path / "recorded.csv"
    below = psyco.verify_outcomes(file, "P<=0.5 [ F x >= 2 ]", traces=True, cut="violated")
    assert below.outcomes == psyco.verify_outcomes([0, 1, 0], "P<=0.5").outcomes, "φ should not happen: it counts as if"
    for requirement in ("P in [0.2,0.4] [ F x > 1 ]", "R{x}<=5 [ C ] within [0,9]", "P=? [ F x > 1 ]"):
        with pytest.raises(RunError, match=r"line 5 of .*: episode 'b' .* has no outcome that would count as violated"):
            psyco.verify_outcomes(file, requirement, traces=True, cut="violated")
    with pytest.raises(RunError, match="cut is 'error' or 'violated'"):
        traces(tmp_path, CUT, cut="ignore")
    with pytest.raises(RunError, match="cut is for traces"):
        psyco.verify_outcomes([1], "P>=0.5", cut="violated")


def test_columns_of_the_end_and_the_step_are_single_values(tmp_path):
    for name in ("terminated", "step"):
        with pytest.raises(RunError, match=f"{name} should have one value in every row"):
            traces(tmp_path, f"episode,x,{name}[0],{name}[1]\na,1,0,0\na,1,1,1\nb,1,0,0\n")
