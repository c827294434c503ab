"""A limit on violations while learning is never exceeded, counts every training episode, and is a budget."""

import jax
import numpy as np
import pytest

import psyco
from psyco._src.core.errors import RunError
from tests.environments import Walk
from tests.making import learned, prepared

NEAR = "P>=0.7 [ G (abs(obs[0]) <= 2) ] & C>=0.8"
DANCE = "P>=0.85 [ G (distance >= 0.1 | collisions <= 1) ] & C>=0.98"
SMALL = {"hidden": 4, "candidates": 2}


def violations(metrics) -> int:
    size = metrics["episodes"][0]
    return int(np.rint((1.0 - metrics["satisfied"]) * size).sum())


@pytest.mark.slow
@pytest.mark.parametrize(
    "learner", ["ppo", *(pytest.param(name, marks=pytest.mark.more) for name in ("safe-es", "snes"))]
)
def test_a_limit_is_never_exceeded_and_mostly_used(learner: str) -> None:
    limit = 61
    domain = psyco.make("particle-dance", horizon=10, start=0.2)
    problem = prepared(domain, DANCE, learner=learner, violations_while_learning=limit, episodes=4000, **SMALL)
    at, metrics, _ = learned(problem)
    count = violations(metrics)
    assert count == metrics.violations == int(at.state.violations)
    assert limit - problem.learner.episodes_per_generation < count <= limit
    assert metrics["episodes"][-1] < 4000  # the limit has ended learning


@pytest.mark.slow
@pytest.mark.more
def test_in_a_gymnasium_environment_too_and_a_resumed_run_ends_with_the_same_bytes(tmp_path) -> None:
    domain = psyco.make(Walk, horizon=11)
    settings = psyco.Settings(learner="sac", violations_while_learning=20, hidden=4, candidates=1, max_episodes=10)
    whole = psyco.synthesize(domain, NEAR, settings=settings, episodes=400)
    assert 0 < whole.violations <= 20 and whole.metrics["episodes"][-1] < 400
    generations = iter(range(1000))
    stop = psyco.Callback(should_stop=lambda: next(generations) >= 1)
    psyco.start(domain, NEAR, tmp_path / "run", settings=settings, episodes=400, callbacks=[stop])
    run = psyco.resume(tmp_path / "run", trust=["tests.environments:Walk"])
    assert run.policy.digest == whole.policy.digest and run.metrics.violations == whole.violations


@pytest.mark.slow
def test_schedules_follow_the_use_of_the_limit() -> None:
    problem = prepared(psyco.make("particle-dance"), DANCE, learner="ppo", violations_while_learning=100, **SMALL)
    learner = problem.learner
    state = learner.init(problem.network.init(jax.random.key(0)))
    for used, done in [(0, 0.0), (50, 0.5), (100, 1.0)]:
        now = state._replace(belief=state.belief._replace(violations=np.int32(used)))
        assert float(learner.progress(now)) == pytest.approx(done)
    last = -(-60_000 // learner.episodes_per_generation)
    assert float(learner.progress(state._replace(generation=np.int32(last)))) == pytest.approx(1.0)
    assert problem.settings.verify_every == 0


def test_what_does_not_fit_a_limit_is_refused() -> None:
    dance = psyco.make("particle-dance")
    for problem, words in (
        ({"learner": "ppo", "violations_while_learning": 3}, "a generation has 6 episodes, all of which may violate"),
        ({"violations_while_learning": 100, "until_satisfied": True}, "checks while learning play further episodes"),
        ({"violations_while_learning": 100, "normalization": "sampled"}, "plays episodes of random policies"),
    ):
        with pytest.raises(RunError, match=words):
            prepared(dance, DANCE, **problem)
    with pytest.raises(RunError, match="limited for constraints on a probability"):
        prepared(dance, "Rmax=? [ C ]", violations_while_learning=100)


@pytest.mark.parametrize("limit", [0, -1, 1.5, float("nan"), 3 * 10**9, 10**30])
def test_a_limit_that_is_no_number_of_violations_is_refused(limit) -> None:
    """0 would be a promise that no learner can keep, so it does not mean "any number" either."""
    with pytest.raises(RunError, match="violations_while_learning must be a whole number of at least 1"):
        psyco.Settings(violations_while_learning=limit)
