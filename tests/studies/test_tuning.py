"""Tuning: configuration, score and pruning of trials, validation, and resuming to the same result."""

import csv
import dataclasses
import io
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import psyco
from psyco._src.api.study import as_search
from psyco._src.learners.metrics import Metrics
from psyco._src.logic.parser import parse
from psyco._src.runs.config import load_config
from psyco._src.runs.settings import Settings
from psyco._src.studies import objective
from psyco._src.studies.cell import complete
from psyco._src.studies.objective import (
    PruningThreshold,
    Score,
    distance,
    median_threshold,
    pruned_at,
    score_metrics,
)
from psyco._src.studies.search_config import SEED_STRIDE, make_search
from psyco._src.studies.trials import TrialSampler
from psyco._src.studies.tuning import Tuning, _rerun_result
from tests.studies.test_aggregate import Result, made
from tests.studies.test_study_folder import EASY, STUDY, WALK, Here

pytestmark = pytest.mark.extra("optuna")

DANCE = "P>=0.85 [ G (distance >= 0.1 | collisions <= 1) ] & C>=0.98"
SMALL: dict[str, Any] = {
    "trials": 5, "batch_size": 2, "rerun_seeds": 1, "validation_seeds": 1, "seed": 3, "parameters": {"horizon": 9},
    "learner": psyco.SNES(population=4), "settings": STUDY["settings"], "over": ["learning_rate", "sigma=0.05:0.5"],
}  # fmt: skip


# ---- configuration -----------------------------------------------------------------------------------------------


def test_the_stages_have_disjoint_seeds() -> None:
    search = make_search("particle-dance", DANCE, trials=SEED_STRIDE, rerun_seeds=5, validation_seeds=20, seed=7)
    searched = {search.trial_cell(number, {}).seed for number in (0, 1, SEED_STRIDE - 1)}
    again = {cell.seed for cell in search.rerun_plan({"trial 1": {"learning_rate": 0.1}}).cells}
    judged = {cell.seed for cell in search.validation_plan({"learning_rate": 0.1}).cells}
    assert max(searched) < min(again) and max(again) < min(judged) and max(judged) < search.unused_seed
    assert len(judged) == 20 and search.validation_plan({"learning_rate": 0.1}).methods == [
        "tuned",
        "defaults",
    ]


def test_tuned_options_and_defaults_differ_in_the_searched_options_only() -> None:
    search = make_search("particle-dance", DANCE, settings={"episodes": 500}, learner_options={"margin": 0.2})
    tuned, defaults = (
        next(cell.config for cell in search.validation_plan({"learning_rate": 0.1}).cells if cell.method == name)
        for name in ("tuned", "defaults")
    )
    assert tuned.settings.options == {"margin": 0.2, "learning_rate": 0.1} and defaults.settings.options == {
        "margin": 0.2
    }
    assert dataclasses.replace(tuned.settings, options={}) == dataclasses.replace(defaults.settings, options={})
    assert "margin" not in search.ranges and "learning_rate" in search.ranges


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"trials": 0}, "trials must be at least 2, got 0: the first trial is the defaults"),
        ({"trials": 10_001}, "at most 10,000"),
        ({"requirement": None}, "tuning needs a requirement"),
        ({"requirement": "P>=2 [ F true ]"}, "P"),
        ({"over": ["learning_rat"]}, "safe-es has no option 'learning_rat'.*did you mean 'learning_rate'"),
        ({"over": ["checks"]}, "declares no range for checks: give one, as in checks="),
        ({"over": []}, "over names no option"),
        ({"over": ["margin"], "learner_options": {"margin": 0.2}}, "margin is given and tuned"),
        ({"learner_options": {"learning_rat": 1.0}}, "unknown key 'learner.learning_rat'"),
        ({"learner": "snse"}, "did you mean 'snes'"),
        ({"learner": "auto"}, "unknown learner to tune 'auto'"),
        ({"settings": {"seed": 3}}, "chooses its seeds"),
        ({"settings": {"episode": 3}}, "unknown key 'settings.episode'"),
        ({"seed": 2**31 - 1}, "further seeds after the first"),
        ({"validation_seeds": 201}, "validation_seeds must be at most 200"),
        ({"validation_seeds": 0}, "validation_seeds must be a whole number of at least 1"),
        ({"domain": 3}, "takes the name of a domain"),
    ],
)
def test_bad_input_is_refused_in_a_sentence(changes: dict[str, Any], words: str) -> None:
    asked = {"domain": "particle-dance", "requirement": DANCE} | changes
    with pytest.raises(psyco.PsycoError, match=words):
        make_search(asked.pop("domain"), asked.pop("requirement"), **asked)


def test_a_learner_with_nothing_left_to_tune_says_so() -> None:
    fixed = {"population": 4, "learning_rate": 0.1, "sigma": 0.1, "curriculum": 0.1}
    with pytest.raises(psyco.RunError, match="nothing is left to tune of snes"):
        make_search("particle-dance", DANCE, learner="snes", learner_options=fixed)


def test_a_range_whose_end_makes_no_learner_is_refused_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(psyco.RunError, match=r"margin must be a number of at least 0 and below 1, got 1\.5"):
        psyco.tune("particle-dance", DANCE, tmp_path / "t", over=["margin=0.1:1.5"])
    assert not (tmp_path / "t").exists()


def test_without_optuna_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(psyco.RunError, match=r'^tuning needs Optuna: pip install "psyco\[tune\]"$'):
        psyco.tune("particle-dance", DANCE, tmp_path / "t")
    assert not (tmp_path / "t").exists()


def test_the_same_seed_gives_the_same_proposals() -> None:
    """Proposals depend on the seed and the results in their order, also of pruned and failed trials."""
    search = make_search("particle-dance", DANCE, trials=30, seed=5)
    defaults = {name: getattr(psyco.Settings(), name, 0.1) for name in search.ranges}

    def proposed(seed: int) -> list[dict[str, Any]]:
        proposals = TrialSampler(dataclasses.replace(search, seed=seed), defaults)
        found = []
        for number in range(20):
            options = proposals.ask(number)
            found.append(options)
            score = None if number % 4 == 1 else Score(number % 3 > 0, options.get("learning_rate", 0.0))
            proposals.tell(number, score, (Score(False, -0.1), None), pruned=number % 8 == 1)
        return found

    first = proposed(5)
    assert first == proposed(5) != proposed(6)
    assert first[0] == {} and all(options.keys() == search.ranges.keys() for options in first[1:])
    assert all(options[name] in search.ranges[name] for options in first[1:] for name in options)


# ---- scores ------------------------------------------------------------------------------------------------------


def test_every_certificate_stands_above_everything_without_one() -> None:
    order = [
        Score(False, -9.0),
        Score(False, -0.01),
        Score(True, -1e6),
        Score(True, -5.0),
        Score(True, 0.0),
        Score(True, 1e6),
    ]
    assert sorted(order) == order
    values = [score.value for score in order]
    assert values == sorted(values) and len(set(values)) == len(values)


def _certificate(verdict: psyco.Verdict, **finding: Any) -> Any:
    made = dataclasses.make_dataclass("Found", ["verdict", *finding])(verdict, **finding)
    return SimpleNamespace(verdict=verdict, findings=(made,), mean_return=1.0)


def test_the_distance_from_a_certificate_is_what_the_bound_misses() -> None:
    least = parse("P>=0.9 [ F true ] & C>=0.9")
    bounds = {"lower": 0.7, "upper": 0.95, "range": (0.0, 1.0)}
    assert distance(_certificate(psyco.Verdict.UNDECIDED, **bounds), least) == pytest.approx(0.2)
    most = parse("R{reward}<=5 [ C ] within [0,20] & C>=0.9")
    bounds = {"lower": 4.0, "upper": 9.0, "range": (0.0, 20.0)}
    assert distance(_certificate(psyco.Verdict.UNDECIDED, **bounds), most) == pytest.approx(4 / 20)
    assert distance(_certificate(psyco.Verdict.SATISFIED, **bounds), most) == 0.0


def _metrics(satisfied: float, returned: float, rows: int = 40) -> Metrics:
    return Metrics({
        "episodes": np.arange(1, rows + 1) * 10, "length": np.full(rows, 7.0),
        "return": np.full(rows, -99.0), "satisfied": np.zeros(rows),
        "deployed_return": np.linspace(2 * returned, 0, rows), "deployed_satisfied": np.full(rows, satisfied),
    })  # fmt: skip


def test_rows_are_scored_over_the_quarter_of_learning_before_a_point() -> None:
    requirement, settings = parse("P>=0.9 [ F true ] & C>=0.9"), Settings(episodes=400)
    metrics = _metrics(0.9, -10.0)
    # rows 10 to 20 of 40: those in which 100 to 200 of the 400 episodes were done
    wanted = metrics["deployed_return"][9:20].mean()
    assert score_metrics(metrics, requirement, settings, 0.5) == Score(True, pytest.approx(wanted))
    assert score_metrics(metrics.head(19), requirement, settings, 0.5) is None
    assert score_metrics(metrics.head(20), requirement, settings, 0.5) == score_metrics(
        metrics, requirement, settings, 0.5
    )
    assert score_metrics(Metrics({}), requirement, settings, 0.5) is None
    in_steps = Settings(steps=2800, episodes=0)
    assert score_metrics(metrics, requirement, in_steps, 0.5) == score_metrics(metrics, requirement, settings, 0.5)
    assert score_metrics(_metrics(0.86, -10.0), requirement, settings, 0.5).certified  # type: ignore[union-attr]
    assert score_metrics(_metrics(0.6, -10.0), requirement, settings, 0.5) == Score(False, pytest.approx(-0.3))
    least = parse("Rmin=? [ C ]; P>=0.9 [ F true ] & C>=0.9")
    assert score_metrics(metrics, least, settings, 0.5) == Score(True, pytest.approx(-wanted))
    several = parse("P>=0.9 [ F true ] & C>=0.9; P>=0.8 [ F true ] & C>=0.9")  # both at once: 0.7 at least
    assert score_metrics(_metrics(0.66, -10.0), several, settings, 0.5).certified  # type: ignore[union-attr]


# ---- pruning ------------------------------------------------------------------------------------------------


def test_the_threshold_is_the_median_of_earlier_trials_once_there_are_enough() -> None:
    scores = [(Score(True, float(k)), None) for k in range(objective.MIN_TRIALS - 1)]
    assert median_threshold(scores) == PruningThreshold((None, None))
    assert median_threshold([*scores, (Score(False, -0.5), Score(True, 3.0))]) == PruningThreshold(
        (Score(True, 1.0), None)
    )
    assert median_threshold([*scores, (None, None)]) == PruningThreshold((None, None))


@pytest.mark.slow
def test_a_pruned_run_resumes_under_another_threshold_to_the_same_bytes(tmp_path: Path) -> None:
    search = as_search(WALK, EASY, **SMALL)
    cell = search.trial_cell(1, {"learning_rate": 0.05, "sigma": 0.1})
    high, low = (
        PruningThreshold((Score(True, 1e9), None)),
        PruningThreshold((Score(False, -1e9), Score(False, -1e9))),
    )
    complete(tmp_path / "early", cell.config, trust=[WALK], threshold=high)
    ended = psyco.open_run(tmp_path / "early")
    assert ended.state == "stopped" and 12 <= ended.episodes < 24
    assert pruned_at(tmp_path / "early", high) == 0.5
    assert pruned_at(tmp_path / "early", low) is None and pruned_at(tmp_path / "early", None) is None
    complete(tmp_path / "early", cell.config, trust=[WALK], threshold=low)
    complete(tmp_path / "whole", cell.config, trust=[WALK])
    for name in ("metrics.csv", "policy.safetensors"):
        assert (tmp_path / "early" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


# ---- whole tunings ----------------------------------------------------------------------------------------------


class Interrupted(Exception):
    pass


@pytest.fixture(scope="module")
def here() -> Iterator[None]:
    """Run cells in this process, and prune early."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("psyco._src.studies.runner.WorkerTeam", Here)
        patch.setattr("psyco._src.studies.trials.WorkerTeam", Here)
        patch.setattr("psyco._src.studies.objective.MIN_TRIALS", 2)  # so that some trials are pruned
        yield


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory, here: None) -> Tuning:
    """Return a tuning that was interrupted after its first round, then resumed."""
    folder = tmp_path_factory.mktemp("tunings") / "walk"

    def stop(news: str) -> None:
        raise Interrupted(news)

    with pytest.raises(Interrupted, match=r"^2 of 5 trials; best so far: "):
        psyco.tune(WALK, EASY, folder, **SMALL, on_message=stop)
    news: list[str] = []
    kept: list[int] = []
    tuning = psyco.tune(
        WALK,
        EASY,
        folder,
        **SMALL,
        on_message=news.append,
        on_progress=lambda progress: kept.append(sum(cell.reused for cell in progress.cells.values())),
    )
    assert kept[0] == 2 and news[0].startswith("2 of 5 trials") and not tuning.failed
    return tuning


@pytest.mark.slow
def test_the_table_says_what_the_runs_say_and_the_best_are_run_again(done: Tuning) -> None:
    rows = list(csv.DictReader(io.StringIO((done.folder / "trials.csv").read_text())))
    assert [int(row["trial"]) for row in rows] == list(range(5))
    assert rows[0]["learning_rate"] == "" and all(0.05 <= float(row["sigma"]) <= 0.5 for row in rows[1:])
    for row in rows:
        run = psyco.open_run(done.folder / "search" / "cells" / row["cell"])
        if row["state"] == "finished":
            assert run.certificate is not None and row["verdict"] == run.certificate.verdict.name
        else:
            assert row["state"] == "pruned" and run.state == "stopped" and row["pruned_at"] in ("0.5", "0.75")
    finished = sorted((t for t in done.trials if t.score), key=lambda t: t.score, reverse=True)  # type: ignore[arg-type,return-value]
    assert {cell.method for cell in done.rerun.plan.cells} == {t.label for t in finished[:3]}
    assert any(trial.pruned_at for trial in done.trials)


@pytest.mark.slow
def test_the_recommended_configuration_has_an_unused_seed(done: Tuning) -> None:
    config = load_config(done.config)
    seen = {cell.seed for study in (done.rerun, done.validation) if study for cell in study.plan.cells}
    seen |= {trial.outcome.cell.seed for trial in done.trials}
    assert config.settings.seed not in seen
    assert config.settings.options.items() >= done.options.items()
    assert config.settings.options["population"] == 4 and config.settings.episodes == 24


@pytest.mark.slow
def test_a_repeated_tuning_computes_nothing_and_more_trials_only_those(done: Tuning, here: None) -> None:
    before = {path: path.stat().st_mtime_ns for path in done.folder.glob("*/cells/*/metrics.csv")}
    table = (done.folder / "trials.csv").read_bytes()
    running: list[int] = []
    again = psyco.tune(
        WALK, EASY, done.folder, **SMALL, on_progress=lambda progress: running.append(len(progress.running))
    )
    assert not any(running) and again.to_json() == done.to_json()
    more = psyco.tune(WALK, EASY, done.folder, **(SMALL | {"trials": 6}))
    assert [t.row for t in more.trials[:5]] == [t.row for t in done.trials] and len(more.trials) == 6
    assert {path: path.stat().st_mtime_ns for path in before} == before
    back = psyco.tune(WALK, EASY, done.folder, **SMALL)
    assert (done.folder / "trials.csv").read_bytes() == table and back.winner.number == done.winner.number


@pytest.mark.slow
def test_the_page_and_the_command_say_whether_it_helped(
    done: Tuning, here: None, cli: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    page = done.page.read_text()
    assert "<h2>Validation</h2>" in page and "PSyCo tuning" in page and "All 5 trials" in page
    words: list[Any] = ["tune", WALK, "--require", EASY, "--out", done.folder]
    for name in ("trials", "batch_size", "rerun_seeds", "validation_seeds", "seed"):
        words += [f"--{name.replace('_', '-')}", SMALL[name]]
    words += ["--learner", "snes", "--set", "horizon=9", "--option", "population=4"]
    words += ["--over", "learning_rate", "--over", "sigma=0.05:0.5"]
    for name, value in STUDY["settings"].items():
        words += ["--setting", f"{name}={value}"]
    said = cli(*words)
    assert said.status == 0 and done.verdict in " ".join(said.out.split())
    found = json.loads(cli(*words, "--json").out)
    assert found["outcome"] == done.outcome and len(found["trials"]) == 5 and found["verdict"] in page
    assert found["options"] == done.options


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("particle-dance",), "tuning needs a requirement"),
        (("particle-dance", "--require", DANCE, "--trials", "0"), "trials must be at least 2"),
        (("particle-dance", "--require", DANCE, "--over", "learning_rat"), "did you mean 'learning_rate'"),
        (
            ("particle-dance", "--require", DANCE, "--option", "learning_rat=1"),
            "unknown key 'learner.learning_rat'",
        ),
        (("particle-dnce", "--require", DANCE), "particle-dance"),
    ],
)
def test_bad_input_is_status_2(
    arguments: tuple[str, ...],
    words: str,
    cli: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    said = cli("tune", *arguments)
    assert said.status == 2 and words in said.err
    assert not list(tmp_path.iterdir())


def test_a_folder_with_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(psyco.RunError, match=r"not empty and not a tuning \(thesis\.tex"):
        psyco.tune("particle-dance", DANCE, tmp_path)


BETTER: list[Result] = [(True, -1.0 - k) for k in range(10)]
POOR: list[Result] = [(True, -19.0 - k) for k in range(10)]


@pytest.mark.parametrize(
    ("tuned", "defaults", "outcome", "words", "kept"),
    [
        (BETTER, POOR, "better", "The tuned options beat the defaults: on 10 fresh seeds each", True),
        # Too few to show anything.
        (BETTER[:3], POOR[:3], "inconclusive", "are not shown to beat the defaults: on", True),
        (BETTER[:5], POOR[:5], "inconclusive", "6 runs of each would show one at this probability", True),
        (BETTER, BETTER, "inconclusive", "are not shown to beat the defaults, so the defaults stay", False),
        (POOR, BETTER, "worse", "are worse than the defaults, so the defaults stay", False),
        (POOR, [(False, 9.0)] * 10, "better", "The tuned options beat", True),  # a certificate first
        # Failed runs: before, the verdict came from the four that did not fail.
        ([*BETTER[:4], *["failed"] * 6], POOR, "inconclusive", "6 runs with the tuned options failed", False),
        (["failed"] * 10, POOR, "worse", "10 runs with the tuned options failed and count as the worst", False),
        (BETTER, [*POOR[:2], *["damaged"] * 8], "better", "8 runs with the defaults failed", True),
        (["waiting"], POOR, "inconclusive", "validation runs are missing", False),
    ],
)
def test_the_tuned_options_beat_the_defaults_only_if_the_runs_show_it(
    tuned: list[Result], defaults: list[Result], outcome: str, words: str, kept: bool
) -> None:
    winner: Any = SimpleNamespace(number=4, options={"learning_rate": 0.1})
    study = made(tuned=tuned, defaults=defaults)
    tuning = Tuning(make_search("particle-dance", DANCE), Path("x"), (), study, winner, study, {})
    assert tuning.outcome == outcome and words in tuning.verdict
    assert tuning.options == ({"learning_rate": 0.1} if kept else {})


def test_a_trial_whose_reruns_failed_does_not_win_by_the_others() -> None:
    rerun = made(**{"trial 1": [(False, 9.0), "failed", "failed"], "trial 2": [(False, 1.0)] * 3})
    first, second = (_rerun_result(rerun, SimpleNamespace(label=f"trial {k}", number=k)) for k in (1, 2))  # type: ignore[arg-type]
    assert first < second


def test_where_the_defaults_did_best_they_stay() -> None:
    nobody: Any = SimpleNamespace(number=0, options={})
    same = Tuning(make_search("particle-dance", DANCE), Path("x"), (), made(a=["waiting"]), nobody, None, {})
    assert same.outcome == "unchanged" and "the defaults stay" in same.verdict


@pytest.mark.more
def test_kills_change_no_byte(tmp_path: Path) -> None:
    """SIGKILL at random moments of search, rerun and validation; the tables equal those of an undisturbed tuning."""
    import os
    import signal
    import subprocess
    import time

    words = [
        "tune",
        "particle-dance",
        "--require",
        DANCE,
        "--trials",
        "5",
        "--rerun-seeds",
        "1",
        "--validation-seeds",
        "2",
    ]
    words += ["--episodes", "1000", "--workers", "1"]

    def started(folder: Path) -> Any:
        return subprocess.Popen(
            [sys.executable, "-m", "psyco", *words, "--out", str(folder)],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )  # fmt: skip

    began = time.monotonic()
    assert started(tmp_path / "alone").wait() == 0
    seconds = time.monotonic() - began
    rng, kills = np.random.default_rng(0), 0
    while kills < 3:
        process = started(tmp_path / "killed")
        time.sleep(seconds * float(rng.uniform(0.2, 0.6)))  # the first one compiled, too
        if process.poll() is not None:
            assert process.returncode == 0
            break  # it was faster
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        kills += 1
    assert kills and started(tmp_path / "killed").wait() == 0
    for name in ("trials.csv", "config.toml", "validation/cells.csv", "rerun/cells.csv"):
        files = [tmp_path / folder / name for folder in ("alone", "killed")]
        assert files[0].exists() == files[1].exists()
        if files[0].exists():
            assert files[0].read_bytes() == files[1].read_bytes(), name
