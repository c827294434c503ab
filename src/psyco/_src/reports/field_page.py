"""The page of a watch: does the promise hold, what the field says about it over time, and the alarms.

Everything is plain HTML and SVG, made here; the script of the page only asks for news.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import chain, groupby
from typing import Any

from psyco._src.field.field_test import Interval, MonitoredConstraint
from psyco._src.field.service import WatchSession
from psyco._src.field.watch_state import AlarmRecord, HistoryPoint
from psyco._src.reports.run_page import Sections, whole_page
from psyco._src.verification.base import confidence_percent
from psyco._src.verification.certificate_html import certificate_html

WIDTH, HEIGHT = 520, 250
LEFT, RIGHT, TOP, BOTTOM = 62, 12, 10, 42
FEW = 4  # points since an alarm, before which the interval is still that of nothing
DATA: dict[str, Any] = {"runs": [], "limits": {}}  # nothing for the script to draw


@dataclass(frozen=True)
class LiveWatch:
    """A watch that goes on in this process, for a `PageServer`."""

    session: WatchSession
    title: str

    def version(self) -> str:
        """Changes with every episode."""
        return f"{self.session.watcher.episodes} {self.session.progress.departed}"

    def news(self) -> dict[str, Any]:
        """Everything that the page shows, as it is now."""
        return {"version": self.version(), "sections": watch_sections(self.session, self.title), "data": DATA}

    def page(self) -> str:
        """The page itself."""
        return whole_page(self.title, watch_sections(self.session, self.title), DATA, live=True)


def watch_page(session: WatchSession, title: str) -> str:
    """The page of a watch as it stands, which needs no server."""
    return whole_page(title, watch_sections(session, title), DATA)


def watch_sections(session: WatchSession, title: str) -> Sections:
    """The parts of the page."""
    certificate = session.watcher.certificate
    return {
        "top": _top(session, title),
        "certificate": "" if certificate is None else certificate_html(certificate),
        "details": _alarms(session) + _departed(session),
    }


def _top(session: WatchSession, title: str) -> str:
    watcher = session.watcher
    lost = watcher.in_alarm
    badge, kind = ("ALARM", "violated") if lost else ("NO ALARM", "satisfied")
    meaning = (
        f"In the field, this holds no longer: {'; '.join(lost)}."
        if lost
        else "Nothing in the field says that the requirement holds no longer."
    )
    facts = {
        "episodes": f"{watcher.episodes:,}",
        "alarms and recoveries": str(len(session.progress.alarms)),
        "false alarms": f"at most one in {watcher.false_alarm_every:,} episodes, on average",
    }
    listed = "".join(f"<div><dt>{key}</dt><dd>{value}</dd></div>" for key, value in facts.items())
    now = session.point()
    history = [*session.progress.history, now]
    charts = "".join(
        _chart(each, k, history, session.progress.alarms) for k, each in enumerate(watcher.watched)
    )
    return f"""
<p class="kicker">PSyCo watch</p>
<h1>{escape(title)}</h1>
<div class="verdict {kind}"><span class="badge">{badge}</span><p>{escape(meaning)}</p></div>
<dl class="facts">{listed}</dl>
<h2>Requirement</h2>
<pre class="requirement"><code>{escape(str(watcher.requirement))}</code></pre>
<h2>In the field</h2>
<p class="muted">Each interval holds at all times at once, at the confidence of its constraint, if the probability has
stayed what it is since the watch began or since the last alarm or recovery, from which it is counted.</p>
<div class="grid">{charts}</div>"""


def _chart(
    watched: MonitoredConstraint, k: int, history: Sequence[HistoryPoint], alarms: Sequence[AlarmRecord]
) -> str:
    """The interval over episodes as a band, dashes at what is required, a line at every alarm and recovery."""
    name = escape(watched.called)
    bounds = [side.bound for side in watched.sides]
    low, high = _range(watched, k, history)
    last = max(history[-1].episode, 1)

    def x(episode: float) -> float:
        return LEFT + episode / last * (WIDTH - LEFT - RIGHT)

    def y(value: float) -> float:
        clipped = min(max(value, low), high)
        return HEIGHT - BOTTOM - (clipped - low) / (high - low) * (HEIGHT - TOP - BOTTOM)

    there = [f"{x(p.episode):.1f} {y(p.intervals[k].upper):.1f}" for p in history]
    back = [f"{x(p.episode):.1f} {y(p.intervals[k].lower):.1f}" for p in reversed(history)]
    happened = [(each.episode, "lost") for each in alarms if watched.called in each.lost]
    happened += [(each.episode, "recovered") for each in alarms if watched.called in each.recovered]
    marks = "".join(
        f'<line class="happened {kind}" x1="{x(e):.1f}" x2="{x(e):.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>'
        for e, kind in happened
    )
    limits = "".join(
        f'<line class="limit" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(b):.1f}" y2="{y(b):.1f}"/>'
        for b in bounds
    )
    now = history[-1].intervals[k]
    level = confidence_percent(watched.stated.confidence)
    keys = (
        f'<span><span class="key area"></span>{level} interval, now {now.lower:.4g} to {now.upper:.4g}</span>'
    )
    keys += "".join(f'<span><span class="key dashed"></span>required {b:g}</span>' for b in bounds)
    keys += "<span>solid line: alarm, dashed line: recovery</span>" * bool(happened)
    return (
        f'<figure class="chart alone"><figcaption><span>{name}</span><span class="legend">{keys}</span></figcaption>'
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="interval over episodes, now {now.lower:.4g} to '
        f'{now.upper:.4g}">{_axes(low, high, last, y)}<path class="area good" d="M{"L".join(there + back)}Z"/>'
        f"{limits}{marks}</svg></figure>"
    )


def _range(watched: MonitoredConstraint, k: int, history: Sequence[HistoryPoint]) -> tuple[float, float]:
    """What is drawn: the bounds, and between one alarm and the next all intervals but the widest, which come first."""
    intervals: list[Interval] = []
    for _, stretch in groupby(history, lambda point: point.lost[k]):
        narrowest = sorted((p.intervals[k] for p in stretch), key=lambda each: each.upper - each.lower)
        intervals += narrowest[: len(narrowest) * 3 // 4] if len(narrowest) >= FEW else []
    values = [
        *(side.bound for side in watched.sides),
        *chain(*(intervals or history[-1].intervals[k : k + 1])),
    ]
    lo, hi = watched.span
    inside = [min(max(value, lo), hi) for value in values]
    pad = 0.08 * (max(inside) - min(inside)) or 0.05 * (hi - lo)
    return max(lo, min(inside) - pad), min(hi, max(inside) + pad)


def ticks(low: float, high: float) -> list[float]:
    """A few round numbers from one to the other."""
    power = 10.0 ** math.floor(math.log10((high - low) / 4))
    step = next(k * power for k in (1, 2, 2.5, 5, 10) if k * power >= (high - low) / 4)
    return [k * step for k in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _axes(low: float, high: float, last: int, y: Any) -> str:
    middle = (HEIGHT + TOP - BOTTOM) / 2
    rows = "".join(
        f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(v):.1f}" y2="{y(v):.1f}"/>'
        f'<text x="{LEFT - 7}" y="{y(v) + 4:.1f}" text-anchor="end">{v:.6g}</text>'
        for v in ticks(low, high)
    )
    return (
        f'<g class="axis">{rows}<text x="{LEFT}" y="{HEIGHT - 24}">0</text>'
        f'<text x="{WIDTH - RIGHT}" y="{HEIGHT - 24}" text-anchor="end">{last:,}</text>'
        f'<text class="title" x="{(WIDTH + LEFT - RIGHT) / 2}" y="{HEIGHT - 6}" text-anchor="middle">episodes</text>'
        f'<text class="title" x="12" y="{middle}" transform="rotate(-90 12 {middle})" text-anchor="middle">'
        "interval</text></g>"
    )


def _alarms(session: WatchSession) -> str:
    if not session.progress.alarms:
        return "<h2>Alarms</h2><p>There has been none.</p>"
    rows = "".join(
        f"<tr><td>{alarm.episode:,}</td><td>{escape(alarm.time)}</td>"
        + "".join(f"<td>{escape('; '.join(names)) or '–'}</td>" for names in (alarm.lost, alarm.recovered))
        + "</tr>"
        for alarm in reversed(session.progress.alarms)
    )
    heads = "".join(f"<th>{head}</th>" for head in ("episode", "time", "holds no longer", "holds again"))
    table = f"<table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>"
    return f'<h2>Alarms</h2><div class="scroll">{table}</div>'


def _departed(session: WatchSession) -> str:
    """Inputs of the policy that have left what it was certified on."""
    if session.reference is None:
        return ""
    texts = session.progress.drift.departed(session.reference).values()
    listed = "".join(f"<li>{escape(text)}</li>" for text in texts) or "<li>None has left its range.</li>"
    return f'<h2>What the policy sees</h2><ul class="muted">{listed}</ul>'
