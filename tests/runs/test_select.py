"""From candidates to a certificate: order, honesty, and when learning may end."""

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import psyco
from psyco._src.core.errors import RunError
from psyco._src.logic.parser import parse
from psyco._src.policies.network import network_for
from psyco._src.rollout.sampler import make_sampler
from psyco._src.runs import train
from psyco._src.runs.baselines import Baselines, Performance
from psyco._src.runs.select import Candidate, certify_best, rank_candidates, remark
from psyco._src.runs.train import TrainingState, initial_state
from tests.environments import Walk
from tests.making import learned, make_settings, prepared

pytestmark = pytest.mark.slow  # whole runs

DOMAIN = psyco.make("obstacle-run", horizon=12)
CALM = "P>=0.5 [ G (!caught | collisions <= 1) ] & C>=0.9"
HOPELESS = "P>=0.99 [ F<=2 (distance <= 0.01) ] & C>=0.9"


def small(requirement=CALM, **settings):
    defaults = {"episodes": 220, "population": 20, "checks": 2, "verify_every": 110, "max_episodes": 2000}
    return prepared(DOMAIN, requirement, **{**defaults, **settings})


def with_candidates(problem, thetas):
    """After the last generation, with the given parameters as candidates, the last one current."""
    state = initial_state(problem).state
    inner = state.inner._replace(theta=jnp.asarray(thetas[-1]))
    made = jnp.array([10 * i for i in range(1, len(thetas))] + [1000], jnp.int32)
    state = state._replace(inner=inner, theta=jnp.stack(thetas), made=made, generation=jnp.int32(1000))
    return TrainingState(1000, state)


def constant(problem, action):
    """Parameters of a policy that always takes one action: all weights zero but that action's bias."""
    w1, w2, b1, b2 = problem.network.shapes
    bias = np.zeros(b2, np.float32)
    bias[action] = 1.0
    return jnp.asarray(np.concatenate([np.zeros(np.prod(w1) + np.prod(w2) + np.prod(b1), np.float32), bias]))


def test_sufficient_candidates_come_first_by_return_the_rest_by_belief() -> None:
    """`left` reaches the target from the last row; `up` and `stay` hardly ever do."""
    problem = small("P>=0.3 [ F target ] & C>=0.9", candidates=3, selection_episodes=250)
    up, left, stay = (constant(problem, action) for action in (2, 3, 0))
    found = rank_candidates(problem, with_candidates(problem, [up, left, stay]))
    assert not any(c.sufficient for c in found)  # one in five starts in the last row
    assert [c.confidence for c in found] == sorted((c.confidence for c in found), reverse=True)
    assert found[0].generation == 20
    easy = small("P>=0.02 [ F target ] & C>=0.9", candidates=3, selection_episodes=250)
    first, *rest = rank_candidates(easy, with_candidates(easy, [up, left, stay]))
    assert first.generation == 20
    assert first.sufficient
    assert first.mean_return > max(c.mean_return for c in rest)


@pytest.mark.more
def test_candidates_play_the_same_episodes() -> None:
    problem = small(candidates=2, selection_episodes=50)
    same = constant(problem, 3)
    one, other = rank_candidates(problem, with_candidates(problem, [same, same]))
    assert (one.mean_return, one.confidence) == (other.mean_return, other.confidence)


def test_the_certificate_is_about_the_returned_policy_and_lists_every_look() -> None:
    problem = small("P>=0.8 [ F target ] & C>=0.9", candidates=3, selection_episodes=50, attempts=2)
    state = with_candidates(problem, [constant(problem, a) for a in (2, 3, 0)])
    policy, certificate, candidate, _ = certify_best(problem, state)
    assert certificate.verdict is psyco.Verdict.VIOLATED
    assert certificate.policy == policy.digest
    assert len(certificate.looks) == 2
    assert [look.share for look in certificate.looks] == [1 / 2, 1 / 6], "a third of the error is left for later"
    assert candidate.policy.digest == policy.digest
    words = remark(certificate, candidate)
    assert "2 candidates were tried" in words
    assert f"{round(50 * candidate.observed[0])} of 50 of the selection" in words, (
        "not only the few episodes of the test"
    )
    assert "out of reach" in words
    idle = Performance("doing nothing", 9, 0.0, 0.0, 1.0, 5.0, within_bounds=True)
    for met in (True, False):
        beside = Baselines(idle, (dataclasses.replace(idle, within_bounds=met),))
        assert ("the episodes of doing nothing met the constraints" in remark(certificate, candidate, beside)) == met
        assert ("out of reach" in remark(certificate, candidate, beside)) != met


class Seeded(Walk):
    """Notes the seed of every episode."""

    seeds: ClassVar[set[int]] = set()

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.seeds.add(seed)
        return super().reset(seed=seed, options=options)


def test_learning_selection_and_certificate_share_no_episode() -> None:
    """Episodes that chose a policy must not certify it: they are kinder to it than fresh ones."""

    def seeds_of(work):
        Seeded.seeds.clear()
        done = work()
        return done, set(Seeded.seeds)

    domain = psyco.make(Seeded, horizon=6)
    settings = {"episodes": 66, "population": 20, "checks": 2, "candidates": 3, "selection_episodes": 40}
    problem = prepared(domain, "P>=0.01 [ F obs[0] > 0 ] & C>=0.9", max_episodes=60, verify_every=0, **settings)
    end, learning = seeds_of(lambda: learned(problem).at)
    _, selection = seeds_of(lambda: rank_candidates(problem, end))
    certified, both = seeds_of(lambda: certify_best(problem, end))
    assert learning and selection and selection < both
    assert len(both - selection - learning) >= certified.certificate.episodes > 0


@pytest.mark.more
def test_what_cannot_be_met_ends_without_a_certificate_and_says_why() -> None:
    result = psyco.synthesize(
        DOMAIN,
        HOPELESS,
        episodes=440,
        settings=psyco.Settings(options={"population": 20}, selection_episodes=50, verify_every=0),
    )
    assert result.certificate.verdict is not psyco.Verdict.SATISFIED
    assert "No policy was certified" in result.remark
    assert "lower probability" in result.remark


@pytest.mark.more
def test_learning_ends_when_all_is_satisfied_also_when_it_was_interrupted_there() -> None:
    problem = small("P>=0.01 [ F target ] & C>=0.9", until_satisfied=True)
    run = learned(problem)
    assert 0 < run.at.generation < problem.generations
    assert run.metrics["verdict"][-1] == "SATISFIED"
    assert "SATISFIED" not in run.metrics["verdict"][:-1]
    again = learned(problem, run.at)
    assert again.at is run.at and not again.metrics
    assert certify_best(problem, run.at).certificate.verdict is psyco.Verdict.SATISFIED


@pytest.mark.more
def test_later_looks_of_a_run_until_satisfied_need_more_evidence(monkeypatch: pytest.MonkeyPatch) -> None:
    shares = []
    real = train.verify_parameters

    def spy(*args, share=1.0, **settings):
        shares.append(share)
        return real(*args, share=share, **settings)

    monkeypatch.setattr(train, "verify_parameters", spy)
    learned(small("P>=0.999 [ F target ] & C>=0.9", until_satisfied=True, max_episodes=250))
    assert shares == pytest.approx([1 / 2, 1 / 6])
    assert sum(shares) <= 1


def test_until_satisfied_needs_verifications() -> None:
    with pytest.raises(RunError, match="verify_every"):
        make_settings(until_satisfied=True, verify_every=0)


@pytest.mark.more
def test_severity_changes_costs_and_never_satisfaction() -> None:
    dance = psyco.make("particle-dance", horizon=10)
    requirement = parse("P>=0.5 [ G distance >= 0.8 ]")
    network = network_for(dance, hidden=4)
    theta = jax.vmap(network.init)(jax.random.split(jax.random.key(0), 40))
    keys = jax.random.split(jax.random.key(1), 40)
    plain, severe = (make_sampler(dance, network, requirement, severity=s)(theta, keys) for s in (False, True))
    np.testing.assert_array_equal(plain.satisfied, severe.satisfied)
    bad = ~np.asarray(plain.satisfied)
    assert bad.any()
    assert (np.asarray(severe.cost)[bad] > 0).all()
    assert (
        np.asarray(severe.cost)[bad] < np.asarray(plain.cost)[bad]
    ).all()  # no state is further than 0.8 from holding


def test_bias_is_the_papers_for_snes_and_learned_otherwise_unless_it_is_given() -> None:
    assert prepared(DOMAIN, CALM, learner="snes").network.bias == "one"
    assert prepared(DOMAIN, CALM).network.bias == "learned"
    assert prepared(DOMAIN, CALM, bias="one").network.bias == "one"
    with pytest.raises(RunError, match="bias"):
        prepared(DOMAIN, CALM, bias="two")


def test_schedules_follow_the_episodes_of_the_run() -> None:
    problem = small(episodes=4400)
    assert problem.learner.task.episode_budget == 4400
    assert problem.generations == problem.learner.generations == 200
    task = dataclasses.replace(problem.learner.task, episode_budget=440)
    assert dataclasses.replace(problem.learner, task=task).generations == 20


# ---- expected values -----------------------------------------------------------------------------------------------

MIXED = 'P>=0.05 [ F target ] & C>=0.9; "cost": R{caught}<=5 [ C ] & C>=0.9; S<=0.9 [ caught ]; P=? [ F target ]'


@pytest.fixture
def mixed():
    domain = psyco.make("obstacle-run", grid=3, horizon=6)
    return prepared(domain, MIXED, episodes=600, verify_every=200, candidates=3, selection_episodes=50, seed=1)


@pytest.mark.more
def test_mixed_requirements_are_checked_selected_and_certified(mixed):
    at, metrics, _ = learned(mixed)
    checks = ~np.isnan(metrics["verified_confidence"])
    assert checks.sum() >= 3
    assert (metrics["verified_lower"][checks] <= metrics["verified_share"][checks]).all()
    for candidate in rank_candidates(mixed, at):
        share, cost, rate = candidate.observed
        assert 0 <= share <= 1 and 0 <= cost <= 6 and 0 <= rate <= 1
        assert candidate.sufficient == (candidate.confidence >= 0.9)
    done = certify_best(mixed, at)
    assert [f.estimand for f in done.certificate.findings] == ["probability", "expected value", "rate"]
    assert len(done.certificate.answers) == 1
    assert done.certificate.answers[0].episodes == mixed.settings.max_episodes


def test_what_stood_in_the_way_of_an_expected_value_is_said_with_numbers():
    certificate = psyco.verify_outcomes([40.0] * 60, "R{cost}<=25 [ C ] within [0,100]")
    (cost,) = certificate.findings
    words = remark(certificate, Candidate(0, None, 50, (38.5,), -1.0, 0.1, False))
    assert f"the mean of {cost.episodes} episodes of the test is 40, that of 50 of the selection 38.5" in words
    assert f"the expected value lies {cost.interval}" in words
