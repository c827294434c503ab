"""The page of a tuning: whether it helped, all trials, and the effect of each option."""

from __future__ import annotations

import math
from typing import Any

from markupsafe import Markup

from psyco._src.reports.charts import element, scatter_chart
from psyco._src.reports.page import badge, render_page, render_sections, table
from psyco._src.studies.collect import Row
from psyco._src.studies.statistics import LEVEL
from psyco._src.studies.study_folder import Study
from psyco._src.studies.study_page import (
    cell_table,
    certified_share,
    estimate,
    interval,
    summary_charts,
)
from psyco._src.studies.tuning import RERUN_TRIALS, Tuning

BADGES = {
    "better": ("BETTER", "satisfied"),
    "worse": ("WORSE", "violated"),
    "inconclusive": ("NOT SHOWN", "undecided"),
    "unchanged": ("DEFAULTS STAY", "undecided"),
}


def tuning_page(tuning: Tuning) -> str:
    """Return the page of a finished tuning."""
    trials, validation, search = tuning.trials, tuning.validation, tuning.search
    rows = _ended_rows(validation) if validation else []
    sections = render_sections(
        "tuning.html",
        title=search.title,
        verdict=(*BADGES[tuning.outcome], f"{tuning.verdict}."),
        failed=tuning.failed,
        facts={
            "trials": len(trials),
            "ended early": sum(trial.pruned_at is not None for trial in trials),
            "certified": sum(trial.score is not None and trial.score.certified for trial in trials),
            "training episodes of all runs": f"{tuning.episodes:,}",
        },
        requirement=search.requirement.strip(),
        options=_option_table(tuning),
        tuned=bool(tuning.options),
        rerun_trials=RERUN_TRIALS,
        rerun=_summary_table(tuning.rerun),
        comparison=_comparison(tuning.comparison) if validation else "",
        validation=_summary_table(validation) if validation else None,
        validation_charts=summary_charts(rows, range(len(rows))),
        validation_cells=cell_table(validation) if validation else None,
        level=f"{LEVEL:.0%}",
        search_charts=[*_progress_chart(tuning), *_option_charts(tuning)],
        trial_count=f"{len(trials):,}",
        trials=_trial_table(tuning),
        toml=search.to_toml(),
    )
    return render_page(search.title, sections)


# ---- tables ----------------------------------------------------------------------------------------------------


def _option_table(tuning: Tuning) -> Markup:
    """Return the default, the chosen value and the searched range of each option."""
    chosen = tuning.winner
    rows = [
        (
            element("code", name),
            _value(tuning.defaults[name]),
            *([element("strong", _value(chosen.options[name]))] if chosen.number else []),
            text,
        )
        for name, text in tuning.search.range_texts.items()
    ]
    return table(("option", "default", *[chosen.label] * bool(chosen.number), "searched"), rows)


def _comparison(row: Row | None) -> str:
    if not row:
        return "They could not be compared, since runs are missing."
    return (
        f"A tuned run beats one of the defaults with probability {row['better_certified']:.2f}"
        f"{interval(row, 'better_certified', '.2f')} where a certificate counts first, and "
        f"{row['better']:.2f}{interval(row, 'better', '.2f')} by return alone."
    )


def _ended_rows(study: Study) -> list[Row]:
    return [row for row in study.tables.summary if row["ended"]]


def _summary_table(study: Study) -> Markup:
    rows = [
        (row["method"], certified_share(row), estimate(row, "return_iqm"), estimate(row, "return_median"))
        for row in _ended_rows(study)
    ]
    return table(("", "certified", "return, IQM", "return, median"), rows)


def _trial_table(tuning: Tuning) -> Markup:
    names = list(tuning.search.ranges)
    rows = []
    for trial in tuning.trials:
        row = trial.row
        word = row["verdict"] or trial.state
        rows.append(
            (
                trial.label,
                badge(word, word.lower().split()[0]),
                "–" if row["return"] is None else f"{row['return']:.2f}",
                "–" if row["distance"] is None else f"{row['distance']:.3f}",
                f"{row['episodes']:,}",
                *(_value(trial.options[name]) if name in trial.options else "default" for name in names),
            )
        )
    return table(("", "verdict", "return", "from a certificate", "episodes", *names), rows)


def _value(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


# ---- charts ----------------------------------------------------------------------------------------------------


def _certified_returns(tuning: Tuning) -> dict[int, float]:
    """Return the mean return of each certified trial, by its number."""
    found = {}
    for trial in tuning.trials:
        certificate = trial.outcome.run.certificate if trial.outcome.run else None
        returned = certificate.mean_return if certificate else None
        if trial.score is not None and trial.score.certified and returned is not None:
            found[trial.number] = returned
    return found


def _progress_chart(tuning: Tuning) -> list[Markup]:
    """Return the chart of all certified trials and of the best so far; none where no trial was certified."""
    returns = _certified_returns(tuning)
    best, steps = -math.inf, list[tuple[float, float]]()
    for trial in tuning.trials:
        if trial.number in returns and trial.score is not None and trial.score.number > best:
            best, x, y = trial.score.number, float(trial.number), returns[trial.number]
            steps += [(x, steps[-1][1]), (x, y)] if steps else [(x, y)]
    if not steps:
        return []
    steps.append((float(len(tuning.trials) - 1), steps[-1][1]))
    points = [(float(number), returned) for number, returned in returns.items()]
    keys = [("certified", 0), ("best so far", 1)]
    return [scatter_chart("trials", [], x="trial (0: the defaults)", y="return", points=points, line=steps, keys=keys)]


def _option_charts(tuning: Tuning) -> list[Markup]:
    """Return the chart of the return over each numeric option; those searched by factors have a logarithmic axis."""
    returns = _certified_returns(tuning)
    charts = []
    for name, searched in tuning.search.ranges.items():
        log = getattr(searched, "log", False)
        points = [
            (math.log10(value) if log else float(value), returns[trial.number])
            for trial in tuning.trials
            if trial.number in returns
            and isinstance(value := trial.options.get(name), int | float)
            and not isinstance(value, bool)
        ]
        if points:
            axis = f"log10 of {name}" if log else name
            charts.append(scatter_chart(name, [], x=axis, y="return", points=points))
    return charts
