"""Tables of a study: failed runs count, and no verdict comes from the survivors."""

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import psyco
from psyco._src.cli.study import estimate_text
from psyco._src.learners.metrics import Metrics
from psyco._src.studies import aggregate, study_plan
from psyco._src.studies.aggregate import make_tables, missing_evidence
from psyco._src.studies.cell import RunTimes
from psyco._src.studies.collect import CellOutcome, cell_row
from psyco._src.studies.study_folder import Study, read_study
from psyco._src.studies.study_page import _median, interval, study_page
from psyco._src.studies.study_plan import Cell, make_plan

Result = tuple[bool, float] | str  # certified and return, or the state of a run without a result
PLAN: dict[str, Any] = {
    "requirement": "P>=0.9 [ F true ] & C>=0.9",
    "domain": {"name": "particle-dance"},
}


def outcome(cell: Cell, result: Result) -> CellOutcome:
    """Return the outcome of a run that never ran."""
    if isinstance(result, str):
        return CellOutcome(cell, result, "it fell over" if result == "failed" else "", None, RunTimes())
    certified, returned = result
    certificate = SimpleNamespace(
        verdict=psyco.Verdict.SATISFIED if certified else psyco.Verdict.UNDECIDED,
        mean_return=returned, return_standard_error=0.1, episodes=50, looks=(), findings=(), policy="x",
    )  # fmt: skip
    run: Any = SimpleNamespace(certificate=certificate, metrics=Metrics({}), episodes=9, steps=90, info=None)
    return CellOutcome(cell, "finished", "", run, RunTimes())


def made(**results: Sequence[Result]) -> Study:
    """Return a study with these results of each method."""
    cells = [{"label": name, "hidden": 4 + k, "seeds": len(some)} for k, (name, some) in enumerate(results.items())]
    plan = make_plan(PLAN | {"cells": cells})
    flat = [result for some in results.values() for result in some]
    return Study(Path("study"), plan, tuple(map(outcome, plan.cells, flat)))


GOOD: list[Result] = [(True, 10.0 + k) for k in range(10)]
POOR: list[Result] = [(True, 1.0 + k / 10) for k in range(10)]


def test_a_failed_run_ranks_below_all_others_and_counts_in_every_share() -> None:
    """6 of 10 runs of the better method failed: it wins 4 of 10 comparisons, not all."""
    tables = made(ours=[*GOOD[:4], *["failed"] * 6], theirs=POOR).tables
    (compared,) = tables.comparisons
    assert compared["better"] == compared["better_certified"] == pytest.approx(0.4)
    ours, theirs = tables.summary
    assert (ours["certified"], ours["ended"], ours["finished"], ours["certified_share"]) == (4, 10, 4, 0.4)
    assert np.isnan(ours["return_iqm"]) and np.isnan(ours["return_median"])  # failed runs are in the middle half
    assert theirs["return_iqm"] == pytest.approx(1.45)
    highest = next(row["share"] for row in tables.profiles if row["method"] == "ours")
    assert highest == pytest.approx(0.4)


def test_few_failed_runs_are_trimmed_like_any_worst_runs() -> None:
    (ours,) = made(ours=[*GOOD[:8], "failed", "damaged"]).tables.summary
    assert ours["return_iqm"] == pytest.approx(np.mean([10.0, 11.0, 12.0, 13.0, 14.0, 15.0]))
    assert ours["return_median"] == pytest.approx(12.5)
    assert ours["return_iqm_lower"] == -np.inf or ours["return_iqm_lower"] < 10.0


def test_all_runs_failed_against_some_that_did_not() -> None:
    study = made(ours=["failed"] * 8, theirs=POOR[:8])
    (compared,) = study.tables.comparisons
    assert (compared["better"], compared["better_upper"]) == (0.0, pytest.approx(1 - 0.025 ** (1 / 8)))
    assert "0 of 8" in study_page(study)


def test_runs_that_wait_or_go_on_are_no_failures() -> None:
    tables = made(ours=[*GOOD[:3], "waiting", "running"], theirs=POOR[:3]).tables
    ours, _ = tables.summary
    assert (ours["runs"], ours["ended"], ours["certified_share"]) == (5, 3, 1.0)
    assert tables.comparisons[0]["better"] == 1.0
    stopped, _ = made(ours=[*GOOD[:3], "stopped"], theirs=POOR[:3]).tables.summary
    assert stopped["ended"] == 4


def test_a_comparison_that_shows_nothing_says_how_many_runs_would() -> None:
    (three,) = made(ours=GOOD[:3], theirs=POOR[:3]).tables.comparisons
    assert missing_evidence(three, "better") == (
        "no difference is shown; 6 runs of each would show one at this probability"
    )
    assert three["better_runs_needed"] == 6
    (enough,) = made(ours=GOOD[:6], theirs=POOR[:6]).tables.comparisons
    assert missing_evidence(enough, "better") == "" and enough["better_runs_needed"] is None
    (equal,) = made(ours=POOR[:3], theirs=POOR[:3]).tables.comparisons
    assert missing_evidence(equal, "better") == "no difference is shown"
    assert "6 runs of each would" in study_page(made(ours=GOOD[:3], theirs=POOR[:3]))


# ---- many cells --------------------------------------------------------------------------------------------------


def test_ten_thousand_seeds_parse_and_print_their_requirement_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    parsed: list[str] = []
    parse = study_plan.parse
    monkeypatch.setattr(study_plan, "parse", lambda text: parsed.append(text) or parse(text))
    plan = make_plan(PLAN | {"requirement": "P>=0.91 [ F true ] & C>=0.9", "seeds": 10_000})
    assert len({cell.name for cell in plan.cells}) == 10_000 and len(parsed) <= 2
    assert read_study(tmp_path, plan).counts == {"waiting": 10_000}


def test_the_status_of_many_methods_compares_no_pairs(
    cli: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Of 10,000 methods in a grid there are 50 million pairs; 100 will do here."""
    file = tmp_path / "grid.toml"
    axes = "\n".join(f"{name} = {list(range(1, 11))}" for name in ("hidden", "candidates"))
    file.write_text(f'seeds = 1\nrequirement = "P>=0.9 [ F true ]"\ndomain.name = "x"\n[grid]\n{axes}\n')
    monkeypatch.setattr(aggregate, "_comparison", lambda *_: pytest.fail("compared"))
    said = cli("study", "status", file, "--out", tmp_path / "none")
    assert said.status == 3 and "100 waiting" in said.out
    assert cli("study", "status", file, "--out", tmp_path / "none", "--json").status == 3


def test_methods_are_compared_up_to_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aggregate, "MAX_COMPARED_METHODS", 2)
    assert make_tables(made(a=GOOD[:2], b=POOR[:2]).outcomes).comparisons
    assert not make_tables(made(a=GOOD[:2], b=POOR[:2], c=POOR[:2]).outcomes).comparisons


def test_a_row_of_a_failed_run_has_no_return() -> None:
    (failed, *_) = made(ours=["failed"]).outcomes
    assert cell_row(failed)["return"] is None and cell_row(failed)["state"] == "unfinished"


def test_an_interval_without_width_is_left_out_and_a_median_over_some_runs_says_so() -> None:
    same = {"share": 0.5, "share_lower": 0.5, "share_upper": 0.50001}
    other = {"share": 0.5, "share_lower": 0.4, "share_upper": 0.6}
    none = {"share": 0.5, "share_lower": np.nan, "share_upper": np.nan}
    assert [interval(row, "share", ".4f") for row in (same, other, none)] == ["", " (0.4000 to 0.6000)", ""]
    assert [estimate_text(row, "share", 2) for row in (same, other, none)] == ["0.50", "0.50 (0.40 to 0.60)", "0.50"]
    rows = [{"seconds": seconds} for seconds in (3.0, None, 5.0, 4.0)]
    assert _median(rows, "seconds") == "4.0 (3 of 4 runs)"
    assert _median(rows[2:], "seconds") == "5.0" and _median(rows[1:2], "seconds") == "–"
