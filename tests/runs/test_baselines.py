"""Baselines: what random actions, doing nothing and the untrained network return beside a certified policy."""

import dataclasses
import math
from typing import Any

import gymnasium
import jax
import numpy as np
import pytest
from gymnasium import spaces
from scipy import stats

import psyco
from psyco._src.envs.actions import Continuous, Discrete, MultiBinary, MultiDiscrete
from psyco._src.policies.network import Network, network_for
from psyco._src.policies.serialization import policy_for
from psyco._src.reports.run_page import run_page
from psyco._src.rollout.execution import Execution
from psyco._src.rollout.jax_sampler import _record_batch
from psyco._src.runs import baselines
from psyco._src.runs.baselines import (
    UNIFORM_STD,
    Baselines,
    Performance,
    _constant_scores,
    constant_parameters,
    mann_whitney,
)
from psyco._src.runs.problem import prepare
from psyco._src.runs.sample_trajectories import sample_episodes
from psyco._src.runs.select import certify_best
from psyco._src.runs.session import build_problem
from psyco._src.runs.store import load_run_info, read_run
from psyco._src.runs.train import TrainingState, initial_state
from psyco._src.runs.warm_start import with_initial_policy
from tests.making import make_settings
from tests.runs.small import CONFIG

DRY = "P>=0.5 [ G obs[0] <= 0.999 ] & C>=0.9"


class Wage(gymnasium.Env[Any, Any]):
    """Three steps, each rewarded by luck, and by the action if it is `paid`; the seed decides all luck."""

    observation_space: Any = spaces.Box(-1.0, 1.0, (2,))
    action_space: Any = spaces.Box(-1.0, 1.0, (1,))

    def __init__(self, paid: float = 0.0, broken: bool = False) -> None:
        self.paid, self.broken = paid, broken

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self.np_random.uniform(-1, 1, 2).astype(np.float32), {}

    def step(self, action: Any) -> Any:
        if self.broken and action[0] == 0.0:
            raise ZeroDivisionError("nothing is done here")
        reward = float(self.np_random.normal() + self.paid * action[0])
        return self.np_random.uniform(-1, 1, 2).astype(np.float32), reward, False, False, {}


def certified(requirement=DRY, action=5.0, execution=None, start=None, episodes=600, **parameters):
    """Certify a policy with this score for its action, as if it had been learned in these episodes.

    It starts from random parameters, or from a policy with the score `start`.
    """
    domain = psyco.make(lambda: Wage(**parameters), horizon=3)
    settings = make_settings(
        episodes=episodes, learner="safe-es", hidden=4, normalization="none", candidates=1, max_episodes=60,
        selection_episodes=20,
    )  # fmt: skip
    first = None
    if start is not None:
        network = network_for(domain, hidden=4)
        first = policy_for(domain, network, constant_parameters(network, np.float32([start])))
    problem = prepare(
        domain, psyco.parse(requirement), with_initial_policy(settings, first), execution or Execution(),
        initial_policy=first,
    )  # fmt: skip
    at = initial_state(problem)
    theta = constant_parameters(problem.network, np.float32([action]))
    inner = at.state.inner._replace(theta=jax.numpy.asarray(theta))
    learned = at.state._replace(inner=inner, generation=jax.numpy.int32(1))
    return certify_best(problem, TrainingState(1, learned))


# ---- the plain word ------------------------------------------------------------------------------------------


def test_a_certified_policy_that_is_no_better_than_a_baseline_is_called_so() -> None:
    done = certified(paid=0.0)
    assert done.certificate.verdict is psyco.Verdict.SATISFIED
    word = done.baselines.remark(done.certificate)
    assert word.startswith("Certified, but ") and "better than" in word and "(p = " in word and "level 0.05" in word
    assert "--learner" in word and "margin" in word and "--from" in word
    without = dataclasses.replace(done.baselines, has_margin=False).remark(done.certificate)
    assert "--learner" in without and "margin" not in without and "--from" in without


@pytest.mark.parametrize(("goal", "action", "good"), [("max", 5.0, True), ("max", -5.0, False), ("min", -5.0, True)])
def test_a_policy_with_a_better_return_is_not(goal, action, good) -> None:
    """Also where the return is minimised."""
    done = certified(f"R{goal}=? [ C ]; {DRY}", action, paid=3.0)
    word = done.baselines.remark(done.certificate)
    assert (word == "") if good else ("no better than" in word)


def test_the_number_of_the_policy_is_that_of_the_certificate_and_baselines_are_few() -> None:
    done = certified(paid=3.0)
    policy, others = done.baselines.policy, done.baselines.others
    assert policy.mean_return == pytest.approx(done.certificate.mean_return)
    assert (policy.length, policy.episodes) == (3.0, done.certificate.episodes)
    assert policy.satisfied == done.certificate.findings[0].share
    assert [each.name for each in others] == ["random actions", "doing nothing", "untrained network"]
    assert sum(each.episodes for each in others) <= 0.02 * 600
    assert done.baselines.text.splitlines()[1].split()[:3] == ["this", "policy", f"{policy.mean_return:.2f}"]


def test_a_baseline_that_misses_the_constraints_is_no_measure() -> None:
    """Here every baseline violates, and the policy is the better of two evils or worse: no word is due."""
    done = certified('P>=0.5 [ F ("end" & return >= 4) ] & C>=0.9', action=5.0, paid=3.0)
    assert done.certificate.verdict is psyco.Verdict.SATISFIED
    assert not any(each.within_bounds for each in done.baselines.others)
    assert done.baselines.remark(done.certificate) == ""


def test_a_baseline_whose_episode_fails_is_left_out_and_costs_nothing(caplog) -> None:
    done = certified(paid=3.0, broken=True)
    assert [each.name for each in done.baselines.others] == ["random actions", "untrained network"]
    assert "doing nothing cannot be played as a baseline" in caplog.text
    assert done.certificate.verdict is psyco.Verdict.SATISFIED


def test_nothing_of_the_certificate_but_a_note_depends_on_baselines(monkeypatch: pytest.MonkeyPatch) -> None:
    with_note = certified().certificate
    monkeypatch.setattr(baselines, "BUDGET_SHARE", 0.0)
    without = certified()
    assert without.baselines is None
    assert with_note.notes[0].startswith("Returns of baselines, no part of the guarantee: random actions ")
    assert dataclasses.replace(with_note, notes=with_note.notes[1:], issued=without.certificate.issued) == (
        without.certificate
    )


def test_too_few_episodes_are_not_tested(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(baselines, "BUDGET_SHARE", 2 / 600)
    done = certified("P>=0.1 [ G obs[0] <= 0.999 ] & C>=0.5", paid=0.0)
    assert [each.episodes for each in done.baselines.others] == [1, 1], "the budget has room for two of the three"
    assert done.certificate.episodes < 20
    assert [each.p_value for each in done.baselines.others] == [None, None]


def test_the_share_of_a_budget_in_steps_is_that_of_the_episodes_that_were_played() -> None:
    """600 steps are 200 episodes of full length, and 600 if they end after the first step."""
    settings = make_settings(steps=600, episodes=0, learner="safe-es", hidden=4, normalization="none", candidates=1)
    problem = prepare(psyco.make(Wage, horizon=3), psyco.parse(DRY), settings)
    assert [play.episodes for play in baselines._trivial_plays(problem)] == [1, 1, 1]
    assert [play.episodes for play in baselines._trivial_plays(problem, 600)] == [4, 4, 4]


@pytest.mark.more
def test_a_return_that_stands_still_is_said_while_learning(caplog) -> None:
    domain = psyco.make(lambda: Wage(paid=0.0), horizon=3)
    settings = make_settings(
        learner="safe-es", hidden=4, normalization="none", population=4, checks=2, candidates=1, max_episodes=20
    )
    result = psyco.synthesize(domain, DRY, episodes=600, settings=settings)
    assert caplog.text.count("the return stands still at") == 1
    assert "better than" in result.remark


@pytest.mark.more
def test_workers_play_the_same_baselines() -> None:
    here = certified(paid=3.0).baselines
    assert certified(paid=3.0, execution=Execution(workers=2)).baselines == here


# ---- the policy that learning started from -------------------------------------------------------------------


@pytest.mark.parametrize("episodes", [600, 40])  # with 40 there is no room for trivial baselines
def test_learning_that_makes_a_policy_worse_hands_over_the_one_that_it_started_from_and_says_so(episodes) -> None:
    done = certified(action=-5.0, start=5.0, episodes=episodes, paid=3.0)
    assert done.candidate.generation == 0 and done.certificate.mean_return > 5.0
    assert done.policy(np.zeros((1, 2)))[0, 0] > 0.9
    word = done.baselines.remark(done.certificate)
    assert word.startswith("Learning did not improve the policy that it started from") and "learning_rate" in word
    start = done.baselines.others[0]
    assert (start.name, start.episodes) == ("policy of --from", 20)
    assert start.mean_return == pytest.approx(done.certificate.mean_return, abs=3.0)


def test_learning_that_improves_a_policy_has_nothing_to_say() -> None:
    done = certified(action=5.0, start=-5.0, paid=3.0)
    assert done.candidate.generation == 1 and done.certificate.mean_return > 5.0
    assert done.baselines.remark(done.certificate) == ""
    assert done.baselines.others[0].mean_return < -5.0


def test_a_start_that_is_better_and_meets_the_constraints_is_named(finished) -> None:
    certificate = dataclasses.replace(read_run(finished).certificate, verdict=psyco.Verdict.SATISFIED)
    policy = Performance("this policy", 60, 1.0, 0.1, 1.0, 3.0, within_bounds=True)
    start = dataclasses.replace(policy, name="policy of --from", mean_return=9.0, p_value=0.999)
    assert "but worse than the policy of --from (p = 0.001): return 1.00 against 9.00" in (
        Baselines(policy, (start,)).remark(certificate)
    )
    for other in ({"p_value": 0.6}, {"within_bounds": False}):
        assert Baselines(policy, (dataclasses.replace(start, **other),)).remark(certificate) == ""


# ---- parameters ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bias", ["one", "learned"])
@pytest.mark.parametrize("hidden", [5, (4, 3)])
def test_constant_parameters_ignore_the_observation(bias, hidden) -> None:
    network = Network(3, 2, hidden, bias)
    theta = constant_parameters(network, np.float32([0.3, -2.0]))
    scores = network.numpy_scores(theta[None])(np.random.default_rng(0).normal(size=(7, 3)).astype(np.float32))
    assert scores == pytest.approx(np.tile([0.3, -2.0], (7, 1)), abs=1e-6)


@pytest.mark.parametrize(
    ("actions", "expected"),
    [
        (Continuous((-1.0, 0.5, -1.0), (1.0, 2.0, 3.0)), [[0.0, 0.5, 0.0]]),
        (Discrete(3), [0, 1, 2]),
        (Discrete(9), [0, 1, 2, 3]),
        (MultiDiscrete((2, 3)), [[0, 0]]),
        (MultiBinary(2), [[0, 0]]),
    ],
)
def test_doing_nothing_is_the_action_nearest_to_zero_or_each_of_a_few(actions, expected) -> None:
    scores = np.stack([each for _, each in _constant_scores(actions)])
    decoded = actions.decode(scores if actions.ranked else np.tanh(scores))
    np.testing.assert_allclose(decoded, expected, atol=1e-6)


def test_random_actions_are_uniform_within_one_percent() -> None:
    z = np.linspace(-5.0, 5.0, 2001)
    uniform = (1.0 + np.tanh(UNIFORM_STD * z)) / 2.0
    assert abs(stats.norm.cdf(z) - uniform).max() < 0.01


@pytest.mark.parametrize("decimals", [0, 8])
def test_the_test_is_that_of_scipy(decimals) -> None:
    rng = np.random.default_rng(1)
    for n, m in ((4, 51), (20, 30), (1, 60)):
        ours, theirs = rng.normal(0.5, 2, n).round(decimals), rng.normal(0, 2, m).round(decimals)
        expected = stats.mannwhitneyu(ours, theirs, alternative="greater", method="asymptotic").pvalue
        assert mann_whitney(ours, theirs) == pytest.approx(expected, rel=1e-9)
    assert mann_whitney(np.ones(5), np.ones(7)) == 1.0


# ---- runs ------------------------------------------------------------------------------------------------------


def test_a_run_keeps_its_baselines_shows_them_and_a_replay_agrees(finished) -> None:
    run = read_run(finished)
    assert [each.episodes for each in run.baselines.others] == [10, 10, 10]
    assert run.baselines.policy.mean_return == pytest.approx(run.certificate.mean_return)
    page = run_page(run)
    assert "<td>doing nothing</td>" in page and "no part of what a certificate shows" in page
    replay = psyco.replay(finished / "certificate.json", finished / "policy.safetensors")
    assert replay.matches and "the returns of baselines" in replay.not_compared


def test_a_resumed_run_has_the_same_baselines(original, stopped) -> None:
    again = psyco.resume(stopped)
    assert again.baselines == load_run_info(original).baselines
    assert (stopped / "certificate.json").read_bytes() == (original / "certificate.json").read_bytes()


def test_the_command_prints_one_return_and_the_baselines(finished, capsys) -> None:
    from psyco._src.cli.synthesize import show

    run = read_run(finished)
    show(run, 0.0, as_json=False)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("learned from 1,500 episodes") and "return" not in lines[0]
    shown = [line for line in lines if line.startswith("this policy")]
    assert len(shown) == 1 and f"{run.certificate.mean_return:.2f}" in shown[0]
    assert not any("Returns of baselines" in line for line in lines), "the table says it already"


@pytest.mark.more
@pytest.mark.parametrize("episodes", [40, 50])  # with 40 there is no room for any other
def test_a_given_policy_is_compared_too(finished, tmp_path, episodes) -> None:
    settings = dataclasses.replace(CONFIG.settings, episodes=episodes, verify_every=0, candidates=1)
    run = psyco.start(
        CONFIG.domain, CONFIG.requirement, tmp_path / "new", parameters=CONFIG.parameters, settings=settings,
        baseline=finished,
    )  # fmt: skip
    given = run.baselines.others[-1]
    assert (given.name, given.p_value) == ("policy of --baseline", None)
    assert math.isfinite(given.mean_return)


@pytest.mark.more
def test_what_is_learned_without_constraints_is_a_run_in_the_run_also_after_an_interruption(tmp_path) -> None:
    settings = dataclasses.replace(CONFIG.settings, episodes=200, verify_every=0, candidates=1)
    arguments: Any = {"parameters": CONFIG.parameters, "settings": settings, "baseline": "unconstrained"}
    whole = psyco.start(CONFIG.domain, CONFIG.requirement, tmp_path / "whole", **arguments)
    inner = read_run(tmp_path / "whole" / "baseline")
    assert inner.state == "finished" and inner.episodes == whole.episodes
    assert inner.config is not None and not psyco.parse(inner.config.requirement).constraints

    class Interrupted(Exception):
        pass

    def interrupt(now: Any) -> None:
        if now.phase == "learning the baseline" and now.done:
            raise Interrupted

    with pytest.raises(Interrupted):
        psyco.start(
            CONFIG.domain, CONFIG.requirement, tmp_path / "cut", **arguments,
            callbacks=[psyco.Callback(on_progress=interrupt)],
        )  # fmt: skip
    assert psyco.resume(tmp_path / "cut").baselines == whole.baselines
    memory = psyco.synthesize(CONFIG.domain, CONFIG.requirement, **arguments)
    assert memory.baselines == whole.baselines


def test_a_baseline_must_be_a_policy_of_ours(tmp_path) -> None:
    with pytest.raises(psyco.RunError, match="unconstrained"):
        psyco.start("particle-dance", CONFIG.requirement, tmp_path / "x", baseline=lambda observation: 0)
    assert not (tmp_path / "x").exists()


def test_a_compiled_domain_has_them_without_a_program_of_their_own(finished) -> None:
    """The program that records episodes for the page plays them."""
    problem = build_problem(CONFIG)
    sample_episodes(problem, read_run(finished).policy)
    before = _record_batch._cache_size()
    played = [baselines._run(problem, play) for play in baselines._trivial_plays(problem)]
    assert [len(episodes.returns) for episodes in played] == [10, 10, 10]
    assert _record_batch._cache_size() == before
