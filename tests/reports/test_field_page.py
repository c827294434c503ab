"""The page of a field test: content, live updates, wide and narrow windows."""

from typing import Any

import pytest

import psyco
from psyco._src.field.service import Snapshot, WatchSession
from psyco._src.reports.field_page import LiveWatch, _value_range, watch_page
from psyco._src.reports.live_server import PageServer, live_html, live_update
from tests.reports.test_run_page import EVIL, HANGING_OVER, OVERLAPPING, open_page

REQUIREMENT = '"safe": P>=0.85 [ F a ] & C>=0.98; "cost": R{x}<=25 [ C ] within [0,1000] & C>=0.95'


def feed(session: WatchSession, data: bytes) -> None:
    """Feed `data` as a stream without episode numbers that begins with the episodes counted before."""
    list(session.read_stream([data], should_stop=lambda _: False))


def watch_session(requirement: str = REQUIREMENT) -> WatchSession:
    session = WatchSession(psyco.FieldTest(requirement, 1000))
    feed(session, b"1,10\n" * 300 + b"0,12\n" * 10)
    return session


@pytest.mark.browser
@pytest.mark.extra("starlette", "uvicorn")
@pytest.mark.parametrize("width", [1200, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_page_shows_intervals_and_alarms_and_follows(browser: Any, width: int, scheme: str) -> None:
    session = watch_session()
    with PageServer(LiveWatch(session, "field.csv")).in_background() as server:
        size = {"width": width, "height": 800}
        with open_page(browser, server.url, viewport=size, color_scheme=scheme) as page:
            assert page.locator(".verdict .badge").inner_text() == "ALARM"
            assert "safe" in page.locator(".verdict").inner_text()
            assert page.locator(".chart svg .area").count() == 2
            assert page.locator(".chart .event.lost").count() == 1
            assert page.locator(".chart .limit").count() == 2
            for figure in page.locator(".chart").all():
                assert not figure.evaluate(OVERLAPPING)
                assert not figure.evaluate(HANGING_OVER)
            assert page.evaluate("document.documentElement.scrollWidth") == width
            assert not page.locator("#learning").is_visible()
            session.field_test.update([False, 1.0])
            page.locator(".facts dd", has_text="311").wait_for(timeout=20_000)


def test_right_after_an_alarm_the_chart_keeps_its_range() -> None:
    session = WatchSession(psyco.FieldTest("P>=0.85", 1000))
    feed(session, b"1\n" * 300)
    before = _value_range(session.field_test.constraints[0], 0, session.progress.history)
    while not session.field_test.in_alarm:
        feed(session, b"1\n" * session.field_test.episodes + b"0\n")
    history = [*session.points, Snapshot(session.field_test).point]
    assert history[-1].intervals[0] == (0.0, 1.0)
    assert _value_range(session.field_test.constraints[0], 0, history) == pytest.approx(before, abs=0.05)


def test_text_from_outside_is_escaped() -> None:
    session = WatchSession(psyco.FieldTest(f'"{EVIL.replace(chr(34), chr(39))}": P>=0.85 [ F a ]', 1000))
    feed(session, b"0\n" * 30)
    page = LiveWatch(session, EVIL)
    for text in (live_html(page), *live_update(page)["sections"].values()):
        assert "<img" not in text
        assert "owned'</script" not in text.replace("&lt;/script", "")


def test_a_page_says_which_outcomes_wait() -> None:
    session = WatchSession(psyco.FieldTest("P>=0.85", 1000))
    feed(session, b"index,outcome\n0,1\n2,1\n")
    text = live_html(LiveWatch(session, "x"))
    assert "of beginning, by index; 1 outcome is held back until index 1 has ended" in text
    assert "of the lines, taken as that of beginning" in live_html(LiveWatch(watch_session(), "x"))


def test_the_version_changes_with_every_episode() -> None:
    session = watch_session()
    page = LiveWatch(session, "x")
    before = page.version()
    session.field_test.update([True, 1.0])
    assert page.version() != before == "310 () 0"
    assert live_update(page)["data"]["runs"] == []


def test_after_an_alarm_the_page_keeps_it_in_view() -> None:
    session = WatchSession(psyco.FieldTest("P>=0.85", 1000))
    assert "NO ALARM<" in watch_page(session, "field.csv")
    while not session.field_test.in_alarm:
        feed(session, b"1\n" * session.field_test.episodes + b"0\n")
    while session.field_test.in_alarm:
        feed(session, b"1\n" * (session.field_test.episodes + 100))
    page = watch_page(session, "field.csv")
    assert "NO ALARM NOW" in page and "The last alarm was at episode" in page
    assert 'class="verdict satisfied"' not in page
