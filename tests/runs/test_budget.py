"""Automatic settings, the plan of a run, budgets in time, and checks that reuse the learner's own episodes."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import psyco
from psyco._src.core.errors import RunError
from psyco._src.logic.parser import parse
from psyco._src.policies.network import network_for
from psyco._src.policies.serialization import policy_for
from psyco._src.rollout.throughput import Throughput
from psyco._src.runs import time_budget, train
from psyco._src.runs.budget import COMPILED_DEFAULTS, make_run_plan, resolve_auto
from psyco._src.runs.problem import prepare
from psyco._src.runs.settings import Settings, duration, read_time
from psyco._src.verification.base import Counts
from psyco._src.verification.methods import make_test
from tests.making import flat

POLE = "P>=0.9 [ G (abs(obs[0]) <= 1) ] & C>=0.95"
DANCE = "P>=0.8 [ G (distance >= 0.1 | collisions <= 1) ] & C>=0.9"


def resolved(settings: Settings, domain: psyco.Domain, requirement: psyco.Requirement) -> Settings:
    return dataclasses.replace(settings, **resolve_auto(settings, settings.learner, domain, requirement))


class Still:
    """A clock that stands still."""

    @staticmethod
    def perf_counter() -> float:
        return 0.0


@pytest.fixture(scope="module")
def pole() -> psyco.GymDomain:
    return psyco.make("CartPole-v1", horizon=20)  # type: ignore[return-value]


@pytest.mark.parametrize("episodes", [10, 100, 1000, 3000, 60_000])
@pytest.mark.parametrize("learner", ["safe-es", "snes"])
def test_all_but_learning_takes_a_third_of_its_episodes_or_what_a_certificate_needs(
    pole: psyco.GymDomain, episodes: int, learner: str
) -> None:
    requirement = parse(POLE)
    settings = resolved(Settings(episodes=episodes, learner=learner), pole, requirement)
    plan = make_run_plan(settings, pole, requirement, normalization=32)
    rest = sum(phase.episodes for phase in plan.phases if phase.name != "learning")
    least = 32 + 2  # normalization; one episode of a test
    assert rest <= max(episodes, least)
    if episodes >= 3000:
        assert rest <= episodes / 3 + least
        # By psyco plan a verdict takes 255 episodes on average, and with probability 0.9 at most 485.
        assert settings.max_episodes >= 255 and settings.attempts * settings.max_episodes >= 485
    assert [p.name for p in plan.phases] == [
        "normalization",
        "learning",
        "checks",
        "selection",
        "certificate",
    ]


def test_a_constraint_on_the_return_raises_the_discount() -> None:
    pole = psyco.make("CartPole-v1", horizon=400)
    demand = parse('P>=0.9 [ F ("end" & return >= 200) ] & C>=0.95')

    def options(learner: str, requirement: Any, **given: Any) -> Any:
        settings = Settings(learner=learner, steps=400_000, options=given)
        return resolved(settings, pole, requirement).options

    assert options("ppo", demand)["discount"] == 1 - 1 / 400
    assert options("ppo", demand, discount=0.9)["discount"] == 0.9
    assert "discount" not in options("ppo", parse(POLE)) and "discount" not in options("sac", demand)
    assert options("ppo", parse(POLE)).items() >= {"proportional_gain": 0.5, "lambda_min": 0.1}.items()


@pytest.mark.parametrize(("name", "quiet"), [("CartPole-v1", False), ("Pendulum-v1", True)])
def test_the_noise_of_continuous_actions_becomes_small(name: str, quiet: bool) -> None:
    settings = Settings(learner="ppo", steps=400_000)
    found = resolved(settings, psyco.make(name, horizon=100), parse("P>=0.9 [ G obs[0] <= 1 ]")).options
    assert (found.get("std_end") == 0.1) == quiet


@pytest.mark.parametrize(("episodes", "most"), [(52, 52), (50, 51), (41, 51), (40, 40)])
def test_a_certificate_is_not_a_few_episodes_short(pole: psyco.GymDomain, episodes: int, most: int) -> None:
    """51 episodes without a failure are the shortest certificate; if learning has nearly as many, they are allowed."""
    found = resolved(Settings(episodes=episodes, learner="sac"), pole, parse(POLE))
    assert (found.max_episodes, found.candidates) == (most, 1)
    test = make_test("anytime", parse(POLE).constraints[0], false_accept=0.025, false_reject=0.025)  # type: ignore[arg-type]
    assert [test.decide(Counts(n, 0)) for n in (50, 51)] == [0, 1]
    rare = parse("P<=0.1 [ F (abs(obs[0]) > 1) ] & C>=0.95")
    assert resolved(Settings(episodes=50, learner="sac"), pole, rare).max_episodes == 51


def test_given_settings_stay_and_compiled_domains_have_fixed_defaults(pole: psyco.GymDomain) -> None:
    given = Settings(
        learner="safe-es",
        episodes=1000,
        candidates=4,
        selection_episodes=7,
        max_episodes=10_000,
        verify_every=0,
    )
    found = resolved(given, pole, parse(POLE))
    assert (found.candidates, found.selection_episodes, found.max_episodes, found.verify_every) == (
        4,
        7,
        10_000,
        0,
    )
    assert found.attempts >= 1
    compiled = resolved(Settings(learner="safe-es"), psyco.make("particle-dance"), parse(DANCE))
    assert {name: getattr(compiled, name) for name in COMPILED_DEFAULTS} == COMPILED_DEFAULTS
    assert (compiled.candidates, compiled.max_episodes, compiled.verify_every) == (5, 10_000, 1000)


def test_a_plan_is_a_table_and_plain_data(pole: psyco.GymDomain) -> None:
    requirement = parse(POLE)
    settings = resolved(Settings(learner="safe-es", steps=400_000), pole, requirement)
    plan = make_run_plan(settings, pole, requirement, simulator=Throughput(1000.0, 10.0, 3), normalization=32)
    learning = plan.phases[1]
    # The expected length of an episode lies between that of a random policy, 10, and the horizon, 20.
    assert (learning.episodes, learning.expected) == (None, round(400_000 / 200**0.5))
    assert (learning.steps, learning.seconds) == (400_000, 400.0)
    assert plan.seconds == pytest.approx(sum(phase.seconds for phase in plan.phases))
    assert "at 1,000 steps per second" in str(plan) and "probability 0.95 takes about 255 episodes" in str(plan)
    assert json.loads(json.dumps(plan.to_json()))["phases"][1]["steps"] == 400_000
    assert repr(plan).startswith("<RunPlan: at most ")


def test_times_are_read_and_formatted() -> None:
    assert [read_time(t) for t in ("90s", "10min", " 1.5 h ", 30, 2.5)] == [90.0, 600.0, 5400.0, 30.0, 2.5]
    for bad in ("", "10", "min", "1e9h", "-3s", "3 days", 0, -1, float("nan"), True, None):
        with pytest.raises(RunError, match=r"90s, 10min or 1\.5h"):
            read_time(bad)  # type: ignore[arg-type]
    assert [duration(t) for t in (0.25, 42, 600, 9000)] == ["0.2 s", "42 s", "10 min", "2.5 h"]


@pytest.mark.more
def test_a_time_becomes_steps_once_and_the_run_repeats(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    small: dict[str, Any] = {
        "parameters": {"horizon": 5}, "hidden": 4, "options": {"population": 6, "checks": 2},
        "max_episodes": 20, "candidates": 1, "attempts": 1,
    }  # fmt: skip
    monkeypatch.setattr(time_budget, "learning_throughput", lambda *_: Throughput(100.0, 5.0, 0))
    monkeypatch.setattr(time_budget, "time", Still)  # a test does not know how long measuring takes
    said: list[psyco.RunPlan] = []
    run = psyco.start(
        "particle-dance",
        DANCE,
        tmp_path / "timed",
        **flat(time="4s", callbacks=[psyco.Callback(on_plan=said.append)], **small),
    )
    assert run.config is not None and run.config.settings.budget == "300 steps"
    assert "4 s are 300 steps of learning at 100 steps per second" in str(said[0])
    assert min(getattr(run.config.settings, name) for name in COMPILED_DEFAULTS) > 0  # no number is left automatic
    again = psyco.start("particle-dance", DANCE, tmp_path / "again", **flat(steps=300, **small))
    assert (again.folder / "metrics.csv").read_bytes() == (run.folder / "metrics.csv").read_bytes()
    with pytest.raises(RunError, match=r"either steps \(300\) or time \(4s\)"):
        psyco.synthesize("particle-dance", DANCE, steps=300, time="4s")


@pytest.mark.parametrize(("rate", "steps", "left"), [(20.0, 6000, "50%"), (2000.0, 900_000, "25%")])
def test_a_slow_simulator_leaves_time_for_the_certificate(
    monkeypatch: pytest.MonkeyPatch, rate: float, steps: int, left: str
) -> None:
    """At 20 steps per second a certificate takes more than a quarter of ten minutes."""
    monkeypatch.setattr(time_budget, "measure_simulator", lambda *_: Throughput(rate, 20.0, 4))
    monkeypatch.setattr(time_budget, "learning_throughput", lambda *_: Throughput(rate, 20.0, 4))
    monkeypatch.setattr(time_budget, "time", Still)
    settings = Settings(learner="sac", hidden=4, normalization="none")
    timed = time_budget.fit_to_time(psyco.make("CartPole-v1", horizon=100), parse(POLE), settings, 600.0)
    assert timed.problem.settings.steps == steps
    assert f"{steps:,} steps of learning" in timed.plan.time and f"{left} of the time are left" in timed.plan.time
    assert timed.plan.seconds is not None and timed.plan.seconds <= 1.1 * 600.0


@pytest.mark.parametrize("seconds", [20.0, 1000.0])
def test_the_planned_run_is_the_one_whose_speed_was_measured(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """The learner depends on the number of steps, and sac makes more updates per step if there are fewer of them."""

    def pace(problem: Any, *_: Any) -> Throughput:
        return Throughput(1.0 / (1 / 20_000 + 1e-3 * problem.learner.updates_per_step), 200.0, 4)

    monkeypatch.setattr(time_budget, "measure_simulator", lambda *_: Throughput(20_000.0, 200.0, 4))
    monkeypatch.setattr(time_budget, "learning_throughput", pace)
    monkeypatch.setattr(time_budget, "time", Still)
    domain = psyco.make("Pendulum-v1")
    problem, plan = time_budget.fit_to_time(
        domain, parse("P>=0.9 [ G (abs(action[0]) <= 1.2) ] & C>=0.98"), Settings(), seconds
    )
    assert problem.settings.learner == ("sac" if seconds == 20.0 else "ppo")
    takes = pace(problem).seconds(problem.settings.steps)
    assert 0.4 * seconds <= takes <= 0.9 * seconds
    assert takes == pytest.approx({phase.name: phase.seconds for phase in plan.phases}["learning"])


@pytest.mark.more
def test_the_pace_of_learning_is_measured_on_both_kinds_of_domain(pole: psyco.GymDomain) -> None:
    options = {"population": 6, "checks": 2}
    settings = Settings(
        steps=time_budget.TRIAL_STEPS, learner="safe-es", hidden=4, options=options, normalization="none"
    )
    for domain, text in ((pole, POLE), (psyco.make("particle-dance", horizon=5), DANCE)):
        problem = prepare(domain, parse(text), settings)
        compiled = problem.sampler.compiled
        pace = time_budget.learning_throughput(problem, None if compiled else time_budget.simulator_throughput(problem))
        assert pace.rate > 10 and 1 <= pace.length <= domain.horizon and pace.episodes > 0


def run_pole(pole: psyco.GymDomain, folder: Path, **options: Any) -> psyco.Run:
    return psyco.start(
        pole,
        POLE,
        folder,
        **flat(
            episodes=96,
            **options,
            learner="safe-es",
            options={"population": 6, "checks": 2},
            hidden=4,
            verify_every=32,
            max_episodes=10,
            candidates=1,
            normalization="none",
        ),
    )


@pytest.mark.slow
def test_checks_while_learning_are_those_that_the_learner_plays_and_survive_an_interruption(
    pole: psyco.GymDomain, tmp_path: Path
) -> None:
    class Stop(Exception):
        pass

    def interrupt(problem: Any, at: Any) -> None:
        if at.generation == 6:  # within the second segment of four generations
            raise Stop

    whole = run_pole(pole, tmp_path / "whole")
    checked = whole.metrics["verified_episodes"]
    assert checked[[3, 7, 11]].tolist() == [8, 8, 8] and np.isnan(np.delete(checked, [3, 7, 11])).all()
    with pytest.raises(Stop):
        run_pole(pole, tmp_path / "cut", checkpoint_every=0, callbacks=[psyco.Callback(on_checkpoint=interrupt)])
    assert psyco.open_run(tmp_path / "cut").metrics.rows == 6
    again = psyco.resume(tmp_path / "cut")
    assert (again.folder / "metrics.csv").read_bytes() == (whole.folder / "metrics.csv").read_bytes()
    explicit = run_pole(pole, tmp_path / "explicit", verify_episodes=9)
    assert explicit.metrics["verified_episodes"][3] == 9  # more than it plays, so they are played


@pytest.mark.slow
def test_a_run_until_satisfied_that_is_resumed_within_a_segment_takes_no_further_look(
    pole: psyco.GymDomain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each look uses a share of the permitted error, which is that of the end of the segment."""
    looks: list[int] = []
    real = train._check

    def look(problem: Any, at: Any, *more: Any) -> Any:
        looks.append(at.generation)
        return real(problem, at, *more)

    class Stop(Exception):
        pass

    def interrupt(problem: Any, at: Any) -> None:
        if at.generation == 2:
            raise Stop

    monkeypatch.setattr(train, "_check", look)
    with pytest.raises(Stop):
        run_pole(pole, tmp_path / "cut", until_satisfied=True, checkpoint_every=0,
                 callbacks=[psyco.Callback(on_checkpoint=interrupt)])  # fmt: skip
    psyco.resume(tmp_path / "cut")
    assert looks and all(generation % 4 == 0 for generation in looks)


@pytest.mark.more
def test_divergence_is_an_error_without_a_certificate(pole: psyco.GymDomain, tmp_path: Path) -> None:
    with pytest.raises(psyco.RunError, match="learning has diverged"):
        psyco.start(
            pole,
            POLE,
            tmp_path / "run",
            episodes=96,
            settings=psyco.Settings(
                learner="ppo",
                options={"population": 6, "checks": 2, "learning_rate": 1e30},
                hidden=4,
                max_episodes=10,
            ),
        )
    assert not (tmp_path / "run" / "certificate.json").exists()
    network = network_for(pole, hidden=4)
    with pytest.raises(psyco.RunError, match="learning has diverged"):
        policy_for(pole, network, np.full(network.size, np.nan))


@pytest.mark.parametrize("option", ["candidates", "selection-episodes", "attempts", "max-episodes"])
def test_less_than_one_is_refused_on_the_command_line(cli: Any, option: str) -> None:
    said = cli("synthesize", "particle-dance", "--require", DANCE, f"--{option}", -1)
    name = option.replace("-", "_")
    assert said.status == 2 and f"{name} must be a whole number of at least 1, got -1" in said.err


@pytest.mark.slow
def test_check_prints_the_plan(cli: Any) -> None:
    done = cli("check", "CartPole-v1", "--horizon", 20, "--require", POLE, "--steps", "2e4", "--json")
    plan = next(each for each in json.loads(done.out)["checks"] if each["name"] == "plan")
    assert plan["data"]["phases"][1]["steps"] == 20_000
    assert dataclasses.is_dataclass(psyco.RunPlan)
