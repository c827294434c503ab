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
from psyco._src.runs import budget, time_budget, train
from psyco._src.runs import problem as problem_module
from psyco._src.runs.budget import COMPILED_DEFAULTS, make_run_plan, resolve_auto, shortest_certificate
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
    least = 32 + 2 + 51  # normalization; one episode of a test; the shortest certificate
    assert rest <= max(episodes, least) and settings.max_episodes >= 51
    if episodes >= 3000:
        assert rest <= episodes / 3 + 32 + 2
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
    assert options("ppo", parse(POLE)).items() >= {"proportional_gain": 2.0, "control": "multiplier"}.items()


@pytest.mark.parametrize(("name", "quiet"), [("CartPole-v1", False), ("Pendulum-v1", True)])
def test_the_noise_of_continuous_actions_becomes_small(name: str, quiet: bool) -> None:
    settings = Settings(learner="ppo", steps=400_000)
    found = resolved(settings, psyco.make(name, horizon=100), parse("P>=0.9 [ G obs[0] <= 1 ]")).options
    assert (found.get("std_end") == 0.1) == quiet


@pytest.mark.parametrize(("episodes", "most"), [(52, 52), (50, 51), (41, 51), (1, 51)])
def test_a_certificate_can_always_be_satisfied(pole: psyco.GymDomain, episodes: int, most: int) -> None:
    """51 episodes without a failure are the shortest certificate, however short learning is."""
    found = resolved(Settings(episodes=episodes, learner="sac"), pole, parse(POLE))
    assert (found.max_episodes, found.candidates) == (most, 1)
    test = make_test("anytime", parse(POLE).constraints[0], false_accept=0.025, false_reject=0.025)  # type: ignore[arg-type]
    assert [test.decide(Counts(n, 0)) for n in (50, 51)] == [0, 1]
    rare = parse("P<=0.1 [ F (abs(obs[0]) > 1) ] & C>=0.95")
    assert resolved(Settings(episodes=50, learner="sac"), pole, rare).max_episodes == 51


@pytest.mark.parametrize(
    ("episodes", "found"),
    [(3, (1, 1, 1)), (9, (2, 1, 3)), (20, (5, 1, 3)), (60, (5, 1, 14)), (600, (5, 12, 140))],
)
def test_without_constraints_candidates_are_compared_by_a_few_returns(
    pole: psyco.GymDomain, episodes: int, found: tuple[int, int, int]
) -> None:
    """The last policy of a short run may be its worst. A return is an outcome of a single episode, unlike a share."""
    free = parse("Rmax=? [ C ]")
    chosen = resolved(Settings(episodes=episodes, learner="sac"), pole, free)
    assert (chosen.candidates, chosen.selection_episodes, chosen.max_episodes) == found
    assert chosen.attempts == 1  # nothing can fail
    plan = make_run_plan(chosen, pole, free)
    assert sum(phase.episodes for phase in plan.phases if phase.name in ("selection", "certificate")) <= episodes


@pytest.mark.parametrize(
    ("bounds", "least"),
    [("P>=0.9 [ {} ] & C>=0.95", 51), ("P<=0.1 [ {} ] & C>=0.95", 51), ("P in [0.4,0.6] [ {} ] & C>=0.95", 284),
     ("P>=0.9999 [ {} ] & C>=0.999", 98_923)],
)  # fmt: skip
def test_the_shortest_certificate_is_known(bounds: str, least: int) -> None:
    requirement = parse(bounds.format("G distance >= 0.1"))
    [constraint] = requirement.probability_constraints
    found = shortest_certificate(constraint)
    assert found == least
    test = make_test("anytime", constraint, false_accept=(1 - constraint.confidence) / 2)
    share = 1.0 if constraint.upper >= 1 else 0.0 if constraint.lower <= 0 else 0.5
    assert [int(test.decide(Counts(round(share * n), n - round(share * n)))) for n in (found - 1, found)] == [0, 1]
    compiled = resolved(Settings(learner="safe-es"), psyco.make("particle-dance"), requirement)
    assert compiled.max_episodes == max(10_000, found)


@pytest.mark.slow
@pytest.mark.parametrize(("most", "warns"), [(50, True), (51, False)])
def test_a_given_maximum_that_cannot_suffice_is_a_warning(caplog: Any, most: int, warns: bool) -> None:
    settings = Settings(hidden=4, max_episodes=most, candidates=1, verify_every=0)
    requirement = "P>=0.9 [ G (distance >= 0.1 | collisions <= 1) ] & C>=0.95"
    psyco.synthesize("particle-dance", requirement, parameters={"horizon": 5}, episodes=20, settings=settings)
    assert ("at least 51 episodes are needed, even if none fails; give --max-episodes 51" in caplog.text) == warns


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
    assert (
        "a simulator with 1,000 steps per second" in str(plan)
        and "comes on top" in str(plan)
        and "probability 0.95 takes about 255 episodes" in str(plan)
    )
    assert json.loads(json.dumps(plan.to_json()))["phases"][1]["steps"] == 400_000
    assert "14 steps: between the 10 of untrained policies and the horizon of 20" in str(plan)  # sqrt(200)
    full = make_run_plan(settings, pole, requirement, simulator=Throughput(1000.0, 20.0, 3))
    assert "20 steps, the horizon, as those of untrained policies have" in str(full)
    assert "allows" not in str(full)
    short = dataclasses.replace(settings, max_episodes=60)
    assert "at most 485; this run allows 60, and more with --max-episodes 485" in str(
        make_run_plan(short, pole, requirement)
    )
    assert repr(plan).startswith("<RunPlan: at most ")
    slow = make_run_plan(
        settings, pole, requirement, simulator=Throughput(1000.0, 10.0, 3), learning=Throughput(100.0, 10.0, 3)
    )
    assert slow.phases[1].seconds == 4000.0 and "in all" in str(slow) and "learning from them makes 100" in str(slow)


def test_times_are_read_and_formatted() -> None:
    assert [read_time(t) for t in ("90s", "10min", " 1.5 h ", 30, 2.5)] == [90.0, 600.0, 5400.0, 30.0, 2.5]
    for bad in ("", "10", "min", "1e9h", "-3s", "3 days", 0, -1, float("nan"), True, None):
        with pytest.raises(RunError, match=r"90s, 10min or 1\.5h"):
            read_time(bad)  # type: ignore[arg-type]
    assert [duration(t) for t in (0.25, 42, 600, 9000)] == ["0.2 s", "42 s", "10 min", "2.5 h"]


class Ticking:
    """A clock that goes on by a second whenever somebody looks at it."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        self.now += 1.0
        return self.now


SMALL: dict[str, Any] = {
    "parameters": {"horizon": 5}, "hidden": 4, "options": {"population": 6, "checks": 2},
    "max_episodes": 40, "candidates": 2, "attempts": 1, "verify_every": 32, "verify_episodes": 4,
}  # fmt: skip


@pytest.mark.more
def test_the_clock_ends_learning_and_the_configuration_repeats_the_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cli: Any
) -> None:
    """Half of 40 seconds are 2,000 steps at 100 per second; learning turns out to be slower."""
    monkeypatch.setattr(time_budget, "learning_throughput", lambda *_: Throughput(100.0, 5.0, 0))
    monkeypatch.setattr(time_budget, "time", Still)  # a test does not know how long measuring takes
    monkeypatch.setattr(budget, "perf_counter", Ticking().perf_counter)  # of learning: a second per segment
    said: list[psyco.RunPlan] = []
    run = psyco.start(
        "particle-dance",
        DANCE,
        tmp_path / "timed",
        **flat(time="40s", callbacks=[psyco.Callback(on_plan=said.append)], **SMALL),
    )
    assert run.config is not None
    settings = run.config.settings
    # Four generations of 8 episodes of 5 steps are a segment.
    assert 0 < settings.stop_after == run.steps < settings.steps and settings.stop_after % 160 == 0
    assert "40 s are about 2,000 steps of learning" in str(said[0])
    assert min(getattr(settings, name) for name in COMPILED_DEFAULTS) > 0  # no number is left automatic
    again = psyco.start("particle-dance", DANCE, tmp_path / "again", settings=settings, parameters={"horizon": 5})
    for name in ("metrics.csv", "policy.safetensors", "looks.json"):
        assert (again.folder / name).read_bytes() == (run.folder / name).read_bytes()
    file = ("--config", tmp_path / "again" / "config.toml")
    for budget_option, stop in (((), settings.stop_after), (("--steps", "500"), 0), (("--episodes", "40"), 0)):
        stopped = cli("synthesize", *file, *budget_option, "--out", tmp_path / "third", "--overwrite")
        found = psyco.open_run(tmp_path / "third").config
        assert found is not None and found.settings.stop_after == stop, stopped
    longer = psyco.resume(tmp_path / "again", steps=f"+{settings.steps}")
    assert longer.steps >= 2 * settings.steps and longer.config.settings.stop_after == 0
    with pytest.raises(RunError, match=r"either steps \(300\) or time \(4s\)"):
        psyco.synthesize("particle-dance", DANCE, steps=300, time="4s")


def test_the_clock_leaves_time_for_the_certificate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "perf_counter", lambda: 50.0)
    clock = budget.LearningClock(100.0, 40, Throughput(20.0, 5.0, 1))
    assert [clock.is_over(length) for length in (10.0, 17.0, 18.0, 100.0)] == [False, False, True, True]
    # 16 episodes of 25 steps are played again, one at a time, at 40 steps per second.
    slow = budget.LearningClock(110.0, 40, Throughput(20.0, 5.0, 1, 40.0))
    assert [slow.is_over(length) for length in (24.9, 25.0)] == [False, True]


@pytest.mark.parametrize("rate", [60.0, 2000.0])
def test_learning_gets_the_time_that_the_certificate_leaves(monkeypatch: pytest.MonkeyPatch, rate: float) -> None:
    """At 60 steps per second a certificate takes a large part of ten minutes."""
    monkeypatch.setattr(time_budget, "measure_simulator", lambda *_: Throughput(rate, 20.0, 4))
    monkeypatch.setattr(time_budget, "learning_throughput", lambda *_: Throughput(rate, 20.0, 4))
    monkeypatch.setattr(time_budget, "time", Still)
    settings = Settings(learner="sac", hidden=4, normalization="none")
    problem, plan = time_budget.fit_to_time(psyco.make("CartPole-v1", horizon=100), parse(POLE), settings, 600.0)
    assert problem.settings.max_episodes >= 51 and plan.seconds == pytest.approx(600.0, rel=0.1)
    seconds = {phase.name: phase.seconds or 0.0 for phase in plan.phases}
    assert seconds["learning"] >= 0.9 * 300.0 and problem.clock is not None and problem.clock.end == 599.0
    certificate = {phase.name: phase.expected for phase in plan.phases}["certificate"]
    assert 0 < certificate <= problem.clock.episodes


def test_a_time_without_room_for_a_certificate_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_budget, "measure_simulator", lambda *_: Throughput(20.0, 100.0, 4))
    with pytest.raises(RunError, match=r"60 s are too short: the 51 episodes .* take about 4 min .* at least --time 6"):
        time_budget.fit_to_time(psyco.make("CartPole-v1", horizon=100), parse(POLE), Settings(learner="sac"), 60.0)


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
    learning = {phase.name: phase.seconds for phase in plan.phases}["learning"]
    assert 0.4 * seconds <= learning <= seconds and learning <= takes + 1e-3
    assert takes <= learning / 0.6 + 1e-3  # the clock may end learning before its budget is spent, but not much


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


@pytest.mark.parametrize("budget", [{"steps": 10_000, "episodes": 0}, {"episodes": 100}])
def test_a_plan_counts_by_the_measured_length_of_episodes(pole: psyco.GymDomain, budget: dict[str, int]) -> None:
    """Random episodes of 5 steps at a horizon of 20: episodes are expected to have 10, by the geometric mean."""
    requirement = parse(POLE)
    settings = resolved(Settings(**budget, learner="safe-es"), pole, requirement)
    plan = make_run_plan(settings, pole, requirement, simulator=Throughput(1000.0, 5.0, 32))
    assert plan.length == 10.0
    for phase in plan.phases:
        assert phase.steps == (10_000 if phase.name == "learning" and settings.steps else 10 * phase.expected)


def test_the_simulator_is_measured_once_and_everything_counts_by_that(
    pole: psyco.GymDomain, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The choice of the learner and the plan: two measurements would give two lengths of an episode in one output."""
    measured = iter([Throughput(10_000.0, 5.0, 32)])
    monkeypatch.setattr(problem_module, "measure_throughput", lambda *_, **__: next(measured))
    problem = prepare(pole, parse(POLE), Settings(episodes=60_000))
    assert "about 600,000 steps at 10,000" in problem.learner_choice
    assert problem.plan(time_budget.simulator_throughput(problem)).phases[1].steps == 600_000


def test_the_policy_that_learning_starts_from_is_compared_with_enough_episodes(pole: psyco.GymDomain) -> None:
    requirement = parse(POLE)
    for episodes in (10, 3000):
        plain = resolved(Settings(episodes=episodes, learner="safe-es"), pole, requirement)
        started = resolved(
            Settings(episodes=episodes, learner="safe-es", start_from=f"sha256:{'0' * 64}"), pole, requirement
        )
        assert started.selection_episodes >= 20 and started.candidates == plain.candidates
        (selection,) = [p for p in make_run_plan(started, pole, requirement).phases if p.name == "selection"]
        assert selection.episodes == (started.candidates + 1) * started.selection_episodes
