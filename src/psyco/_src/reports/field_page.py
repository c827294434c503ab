"""The page of a field test: does the requirement still hold, its intervals over time, and the alarms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, groupby
from typing import Any

from markupsafe import Markup

from psyco._src.field.field_test import Interval, MonitoredConstraint
from psyco._src.field.service import AlarmRecord, HistoryPoint, Snapshot, WatchSession
from psyco._src.reports.charts import Axes, Range, colour_key, figure
from psyco._src.reports.page import NO_CHART_DATA, Sections, render_page, render_sections
from psyco._src.verification.certificate_html import certificate_html
from psyco._src.verification.rounding import confidence_percent

MIN_STRETCH_POINTS = 4  # after an alarm; with fewer, the interval is still nearly that of no data


@dataclass(frozen=True)
class LiveWatch:
    """The live page of a field test that runs in this process."""

    session: WatchSession
    title: str

    def version(self) -> str:
        """Return a text that changes with every episode."""
        return f"{self.session.field_test.episodes} {self.session.drifted} {len(self.session.order.held)}"

    def content(self) -> tuple[Sections, dict[str, Any]]:
        """Return the sections of the page; its charts are part of them."""
        return watch_sections(self.session, self.title), NO_CHART_DATA


def watch_page(session: WatchSession, title: str) -> str:
    """Return the page of a field test as a file that needs no server."""
    return render_page(title, watch_sections(session, title))


def watch_sections(session: WatchSession, title: str) -> Sections:
    """Return the sections of the page."""
    test, alarms, reference = session.field_test, session.alarms, session.reference
    history = [*session.points, Snapshot(test).point]
    return render_sections(
        "field.html",
        title=title,
        in_alarm=test.in_alarm,
        last_alarm=next((a for a in reversed(alarms) if a.lost), None),
        facts={
            "episodes": f"{test.episodes:,}",
            "alarms and recoveries": len(alarms),
            "order": _order(session),
            "false alarms": f"at most one in {test.false_alarm_every:,} episodes, on average",
        },
        requirement=test.requirement,
        charts=[_chart(constraint, k, history, alarms) for k, constraint in enumerate(test.constraints)],
        certificate=Markup(certificate_html(test.certificate)) if test.certificate else "",
        alarms=[
            (f"{a.episode:,}", a.time, "; ".join(a.lost) or "–", "; ".join(a.recovered) or "–")
            for a in reversed(alarms)
        ],
        # None where the range of the policy's inputs during certification is unknown.
        drift=None if reference is None else list(session.drift.drifted(reference).values()),
    )


def _order(session: WatchSession) -> str:
    """Return the order in which episodes are counted, in words."""
    order = session.order
    if order.column == "index":
        return "; ".join(filter(None, ["of beginning, by index", order.waiting]))
    return "of beginning, by time" if order.column == "started" else "of the lines, taken as that of beginning"


def _chart(
    constraint: MonitoredConstraint, k: int, history: Sequence[HistoryPoint], alarms: Sequence[AlarmRecord]
) -> Markup:
    """Return the interval over episodes as a band, with dashes at required values and a line at every alarm."""
    name, bounds = constraint.label, [detector.bound for detector in constraint.detectors]
    last = max(history[-1].episode, 1)
    axes = Axes((0, last), _value_range(constraint, k, history), "episodes", "interval", x_ticks=(0, last))
    intervals = [point.intervals[k] for point in history]
    band = axes.band(
        [point.episode for point in history],
        [interval.lower for interval in intervals],
        [interval.upper for interval in intervals],
        "area good",
    )
    events = [axes.vertical(alarm.episode, "event lost") for alarm in alarms if name in alarm.lost]
    events += [axes.vertical(alarm.episode, "event recovered") for alarm in alarms if name in alarm.recovered]
    now = f"now {intervals[-1].lower:.4g} to {intervals[-1].upper:.4g}"
    keys = [colour_key(f"{confidence_percent(constraint.constraint.confidence)} interval, {now}", "area")]
    keys += [colour_key(f"required {bound:g}", "dashed") for bound in bounds]
    keys += [Markup("<span>solid line: alarm, dashed line: recovery</span>")] * bool(events)
    limits = [axes.horizontal(bound) for bound in bounds]
    label = f"interval over episodes, {now}"
    return figure(name, label, axes.draw(), band, *limits, *events, keys=keys, alone=True)


def _value_range(constraint: MonitoredConstraint, k: int, history: Sequence[HistoryPoint]) -> Range:
    """Return the range of the chart: the bounds, and the narrowest three quarters of the intervals between alarms.

    The widest intervals are the first ones after the start or an alarm.
    """
    intervals: list[Interval] = []
    for _, stretch in groupby(history, lambda point: point.lost[k]):
        narrowest = sorted((p.intervals[k] for p in stretch), key=lambda each: each.upper - each.lower)
        if len(narrowest) >= MIN_STRETCH_POINTS:
            intervals += narrowest[: len(narrowest) * 3 // 4]
    shown = intervals or history[-1].intervals[k : k + 1]
    lo, hi = constraint.value_range
    values = [detector.bound for detector in constraint.detectors] + [*chain(*shown)]
    inside = [min(max(value, lo), hi) for value in values]
    margin = 0.08 * (max(inside) - min(inside)) or 0.05 * (hi - lo)
    return max(lo, min(inside) - margin), min(hi, max(inside) + margin)
