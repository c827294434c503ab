"""One self-contained page about a tuning: whether it helped, what was tried, what each option did."""

from __future__ import annotations

import math
from html import escape
from typing import Any

from psyco._src.reports.run_page import whole_page
from psyco._src.studies.charts import ChartDot, dots, scatter
from psyco._src.studies.search_config import FINALISTS
from psyco._src.studies.statistics import LEVEL
from psyco._src.studies.study_folder import Study
from psyco._src.studies.study_page import DATA, cell_table, estimate, interval, of, table
from psyco._src.studies.tuning import LUCK, Trial, Tuning

BADGES = {
    "better": ("BETTER", "satisfied"),
    "worse": ("WORSE", "violated"),
    "open": ("NOT SHOWN", "undecided"),
    "same": ("DEFAULTS STAY", "undecided"),
}


def tune_page(tuning: Tuning) -> str:
    """The page of a tuning that has come to its end."""
    return whole_page(tuning.search.title, {"top": _top(tuning), "details": _details(tuning)}, DATA)


def _top(tuning: Tuning) -> str:
    badge, kind = BADGES[tuning.outcome]
    failed = "".join(f"<li>{escape(name)}: {escape(error)}</li>" for name, error in tuning.failed.items())
    problems = (
        f'<div class="problems" role="alert"><strong>Runs that failed:</strong><ul>{failed}</ul></div>'
        * bool(failed)
    )
    trials = tuning.trials
    facts = {
        "trials": str(len(trials)),
        "ended early": str(sum(trial.pruned is not None for trial in trials)),
        "certified": str(sum(trial.score is not None and trial.score.certified for trial in trials)),
        "training episodes of all runs": f"{tuning.episodes:,}",
    }
    listed = "".join(f"<div><dt>{key}</dt><dd>{value}</dd></div>" for key, value in facts.items())
    return f"""
<p class="kicker">PSyCo tuning</p>
<h1>{escape(tuning.search.title)}</h1>
<div class="verdict {kind}"><span class="badge">{badge}</span><p>{escape(tuning.verdict)}.</p></div>
{problems}
<dl class="facts">{listed}</dl>
<pre class="requirement"><code>{escape(tuning.search.requirement.strip())}</code></pre>
<h2>Options</h2>
{_options(tuning)}
<p class="muted">{_advice(tuning)}</p>
<h2>The judging</h2>
{_judging(tuning)}"""


def _options(tuning: Tuning) -> str:
    """What each option was, what it became, and where it was looked for."""
    chosen = tuning.winner
    rows = [
        (
            f"<code>{escape(name)}</code>",
            _value(tuning.defaults[name]),
            *([f"<strong>{_value(chosen.options[name])}</strong>"] if chosen.number else []),
            escape(text),
        )
        for name, text in tuning.search.texts.items()
    ]
    return table(("option", "default", *[escape(chosen.called)] * bool(chosen.number), "searched"), rows)


def _advice(tuning: Tuning) -> str:
    holds = "the tuned options" if tuning.options else "the defaults"
    return (
        f"config.toml holds {holds}, with a seed that no run here has: <code>psyco synthesize --config "
        "config.toml</code> learns a policy with them and certifies it. The certificates of the trials served to "
        "compare; whoever takes the best of many policies of a tuning takes one that was also lucky."
    )


def _judging(tuning: Tuning) -> str:
    if tuning.judged is None:
        return (
            f"<p>There was nothing to judge: of the best {FINALISTS} trials, the defaults did best when these were run "
            f"again.</p>{_summary(tuning.finals)}"
        )
    better = tuning.better
    chance = (
        f"A tuned run beats one of the defaults with probability {better['better_certified']:.2f}"
        f"{interval(better, 'better_certified', '.2f')} where a certificate counts first, and "
        f"{better['better']:.2f}{interval(better, 'better', '.2f')} by return alone."
        if better
        else "They could not be compared, since runs failed."
    )
    charts = "".join(
        dots(title, [ChartDot(row["method"], k, of(row, name)) for k, row in enumerate(_rows(tuning.judged))],
             x=axis, share=name == "certified_share")
        for name, title, axis in (
            ("certified_share", "certified", "share of runs that ended certified"),
            ("return_iqm", "return", "return, IQM"),
        )
    )  # fmt: skip
    return f"""<p>{chance} Both had the same budget and seeds that neither the search nor the choice had seen; what the
search itself cost is not part of that budget.</p>
{_summary(tuning.judged)}<div class="grid">{charts}</div>
<p class="muted">Intervals are at {LEVEL:.0%}. That the tuned options beat the defaults is said where runs of equal
options would rank so high with a chance of at most {LUCK:.1%} (rank-sum test, exact). More in judged/study.html.</p>"""


def _rows(study: Study) -> list[dict[str, Any]]:
    return [row for row in study.answers.summary if row["finished"]]


def _summary(study: Study) -> str:
    rows = [
        (
            escape(row["method"]),
            f"{row['certified']} of {row['finished']}{interval(row, 'certified_share', '.0%')}",
            estimate(row, "return_iqm"),
            estimate(row, "return_median"),
        )
        for row in _rows(study)
    ]
    return table(("", "certified", "return, IQM", "return, median"), rows)


def _details(tuning: Tuning) -> str:
    return f"""<h2>The search</h2>
<p class="muted">Each dot is a trial that ended certified: the return over its certificate's episodes. It is one run,
and what stands out may be luck; so the best {FINALISTS} were run again with further seeds, and the best of those was
judged.</p>
<div class="grid">{_progress(tuning)}{_slices(tuning)}</div>
<h2 class="apart">The best trials again</h2>{_summary(tuning.finals)}
<details><summary>All {len(tuning.trials):,} trials</summary>{_table(tuning)}</details>
{f"<details><summary>All runs that judged</summary>{cell_table(tuning.judged)}</details>" if tuning.judged else ""}
<details><summary>What was asked for</summary><pre><code>{escape(tuning.search.to_toml())}</code></pre></details>"""


def _certified(tuning: Tuning) -> list[tuple[Trial, float]]:
    return [
        (trial, trial.outcome.run.certificate.mean_return)
        for trial in tuning.trials
        if trial.score is not None and trial.score.certified and trial.outcome.run
        and trial.outcome.run.certificate and trial.outcome.run.certificate.mean_return is not None
    ]  # fmt: skip


def _progress(tuning: Tuning) -> str:
    found = _certified(tuning)
    best, line = -math.inf, []
    for trial, returned in found:
        assert trial.score is not None
        if trial.score.number > best:
            best = trial.score.number
            line.append((float(trial.number), returned))
    if not line:
        return ""
    steps = _stairs(line, len(tuning.trials))
    dotted = [(float(trial.number), returned) for trial, returned in found]
    return scatter(
        "trials",
        [],
        x="trial",
        y="return",
        single=dotted,
        line=steps,
        keys=[("certified", 0), ("best so far", 1)],
    )


def _stairs(line: list[tuple[float, float]], trials: int) -> list[tuple[float, float]]:
    """The best so far, from each trial that raised it to the next."""
    steps: list[tuple[float, float]] = []
    for x, y in line:
        steps += [(x, steps[-1][1]), (x, y)] if steps else [(x, y)]
    return [*steps, (float(trials - 1), steps[-1][1])]


def _slices(tuning: Tuning) -> str:
    """The return over each option that is a number; factors of it by their logarithm."""
    charts = []
    for name, each in tuning.search.ranges.items():
        log = getattr(each, "log", False)
        pairs = [
            (math.log10(value) if log else float(value), returned)
            for trial, returned in _certified(tuning)
            if isinstance(value := trial.options.get(name), int | float) and not isinstance(value, bool)
        ]
        if pairs:
            axis = f"log10 of {name}" if log else name
            charts.append(scatter(name, [], x=axis, y="return", single=pairs))
    return "".join(charts)


def _table(tuning: Tuning) -> str:
    names = list(tuning.search.ranges)
    rows = []
    for trial in tuning.trials:
        row = trial.row
        word = row["verdict"] or trial.state
        rows.append(
            (
                str(trial.number),
                f'<span class="badge small {escape(word.lower().split()[0])}">{escape(word)}</span>',
                "–" if row["return"] is None else f"{row['return']:.2f}",
                "–" if row["distance"] is None else f"{row['distance']:.3f}",
                f"{row['episodes']:,}",
                *(_value(trial.options[name]) if name in trial.options else "default" for name in names),
            )
        )
    heads = ("trial", "verdict", "return", "from a certificate", "episodes", *map(escape, names))
    return table(heads, rows)


def _value(value: Any) -> str:
    return escape(f"{value:.4g}" if isinstance(value, float) else str(value))
