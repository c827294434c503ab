"""A verdict needs episodes that are a function of their seed: some are played again, and a difference is an error."""

import os

import gymnasium
import jax
import numpy as np
import pytest

import psyco
from psyco import RunError
from psyco._src.policies.external import as_policy
from psyco._src.rollout.episodes import episode_keys
from psyco._src.rollout.sampler import make_sampler
from tests.environments import Careless, Counting, Deaf, Leaky, Local, Manufactured, Walk, Warm, to_the_left
from tests.making import with_execution

pytestmark = pytest.mark.slow  # plays episodes

REQUIRE = "P>=0.5 [ G (obs[0] <= 1) ] & C>=0.9"
ALWAYS = "P>=0.5 [ G (obs[1] <= 6) ] & C>=0.9"  # obs[1] counts the steps


def verify(environment, requirement=REQUIRE, *, policy=to_the_left, max_episodes=60, wrappers=(), seeded=True, **more):
    domain = psyco.make(environment, horizon=6, wrappers=list(wrappers), seeded=seeded)
    arguments = {"method": "fixed", "max_episodes": max_episodes, **more}
    return psyco.verify(policy, domain, requirement, **with_execution(**arguments))


def test_an_environment_with_chance_from_its_seed_is_certified():
    assert verify(Walk).verdict is psyco.Verdict.SATISFIED


@pytest.mark.parametrize("environment", [Careless, Leaky, Manufactured])
def test_chance_beside_the_seed_is_an_error(environment):
    with pytest.raises(RunError, match=r"episode \d+ of the verification \(seed \d+\).*obs at step 0") as error:
        verify(environment)
    assert "np_random" in str(error.value)
    assert "seeded=False" in str(error.value)


def test_chance_in_what_is_judged_alone_is_an_error():
    class Secret(Walk):
        """Its cost comes from nowhere; its observations come from its seed."""

        def step(self, action):
            *outcome, info = super().step(action)
            return *outcome, {**info, "cost": float.fromhex(os.urandom(4).hex())}

    with pytest.raises(RunError, match=r"info\.cost at step 1"):
        verify(Secret, "P>=0.5 [ G (info.cost >= 0) ] & C>=0.9")


def test_statistics_that_a_wrapper_keeps_between_episodes_are_an_error():
    with pytest.raises(RunError, match="obs at step 0"):
        verify(Walk, wrappers=[gymnasium.wrappers.NormalizeObservation])


@pytest.mark.more
def test_what_a_class_has_learned_before_shows_in_new_processes():
    """In one process all episodes and replays share it; the documentation says so."""
    requirement = "P>=0.9 [ G (info.bad <= 0) ] & C>=0.9"
    domain = psyco.make(Warm, horizon=6)
    network = as_policy(to_the_left).network
    keys = episode_keys(jax.random.key(0), 0, 640)
    try:
        make_sampler(domain, network, psyco.parse(requirement))(np.zeros((640, 0)), keys)
        assert psyco.verify(to_the_left, domain, requirement).verdict is psyco.Verdict.SATISFIED
        run = psyco.Execution(workers=2)
        make_sampler(domain, network, psyco.parse(requirement), execution=run)(np.zeros((640, 0)), keys)
        with pytest.raises(RunError, match=r"played again .*info\.bad at step 1"):
            psyco.verify(to_the_left, domain, requirement, execution=run)
    finally:
        Warm.steps = 0


def test_a_counter_in_a_module_is_an_error():
    Counting.episodes = 0
    with pytest.raises(RunError, match=r"info\.cost"):  # where, is not seen any more: the counter has gone on
        verify(Counting, "P>=0.5 [ G (info.cost <= 1) ] & C>=0.9")


@pytest.mark.parametrize("seed", range(3))
def test_an_environment_that_remembers_its_first_violation_is_an_error(seed):
    """In a new environment every episode is the same; only one that has seen the violation avoids it."""

    class Learned(Walk):
        learned = False

        def step(self, action):
            *outcome, info = super().step(action)
            bad = self.x > 1.5 and not self.learned
            self.learned |= bad
            return *outcome, {**info, "bad": float(bad)}

    with pytest.raises(RunError, match=r"in an environment that had played other episodes: info\.bad at step \d"):
        verify(Learned, "P>=0.5 [ G (info.bad <= 0) ] & C>=0.9", max_episodes=400, seed=seed)


def test_what_an_environment_learned_before_the_look_does_not_count():
    """Environments that have seen a violation avoid the next ones; those of a look are made for it."""

    class Learned(Walk):
        learns, learned = True, False

        def step(self, action):
            *outcome, info = super().step(action)
            bad = self.x > 1.5
            self.learned |= bad and Learned.learns
            return *outcome, {**info, "bad": float(bad and not self.learned)}

    requirement = "P>=0.99 [ G (info.bad <= 0) ] & C>=0.9"
    used = psyco.make(Learned, horizon=6)
    sampler = make_sampler(used, as_policy(to_the_left).network, psyco.parse(requirement))
    sampler(np.zeros((1280, 0)), episode_keys(jax.random.key(0), 0, 1280))  # in 64 environments, as learning does
    Learned.learns = False
    new = psyco.make(Learned, horizon=6)
    found = [psyco.verify(to_the_left, domain, requirement, max_episodes=500) for domain in (used, new)]
    assert found[0].findings == found[1].findings
    assert found[0].verdict is not psyco.Verdict.SATISFIED


@pytest.mark.parametrize("environment", [Careless, Manufactured])
def test_an_undecided_look_needs_repeatable_episodes_too(environment):
    """Its interval is quoted, and more episodes may continue it."""
    with pytest.raises(RunError, match="played again"):
        verify(environment, "P>=0.999 [ G (obs[1] <= 6) ] & C>=0.9", method="anytime")


def test_an_estimate_needs_repeatable_episodes_too():
    Counting.episodes = -68  # 8 in which the policy is asked twice, 60 that decide; what counts changes 40 later
    with pytest.raises(RunError, match="played again"):
        verify(Counting, "P>=0.5 [ G (info.cost <= 1) ] & C>=0.9", estimate=80)


def test_answers_need_repeatable_episodes_too():
    with pytest.raises(RunError, match="played again"):
        verify(Manufactured, "P=? [ G (obs[0] <= 1) ]")


def test_a_seed_that_makes_no_difference_is_noted():
    said = " ".join(verify(Deaf, max_episodes=20).notes)
    assert "All 20 episodes" in said
    assert "ignores its seed, or has no chance events" in said


@pytest.mark.more
@pytest.mark.parametrize("environment", [Deaf, Local])
def test_chance_that_is_drawn_per_process_is_an_error_with_workers(environment):
    with pytest.raises(RunError, match="in another process"):
        verify(environment, ALWAYS, workers=2)


@pytest.mark.slow  # processes
@pytest.mark.more
def test_workers_and_their_replays_agree():
    one, other = verify(Walk), verify(Walk, workers=2)
    assert one.findings == other.findings
    assert one.notes == other.notes


def test_an_environment_that_cannot_repeat_is_certified_on_request_and_the_certificate_says_so():
    certificate = verify(Careless, seeded=False)
    assert certificate.verdict is psyco.Verdict.SATISFIED
    assert certificate.parameters["seeded"] is False
    assert any("independent was assumed, not checked" in note for note in certificate.notes)


def test_at_most_sixteen_episodes_are_played_again():
    class Counted(Walk):
        played = 0

        def reset(self, *, seed=None, options=None):
            Counted.played += 1
            return super().reset(seed=seed)

    domain = psyco.make(Counted, horizon=6)
    Counted.played = 0
    episodes = psyco.verify(to_the_left, domain, REQUIRE, method="fixed", max_episodes=120).episodes
    assert episodes == 120
    assert Counted.played <= 8 + 120 + 16  # those in which the policy is asked twice, the counted, the repeated


# ---- policies that remember ---------------------------------------------------------------------------------------


def latched_after(calls):
    """Return a function that acts otherwise after so many calls."""
    seen = 0

    def act(observation):
        nonlocal seen
        seen += 1
        return int(seen > calls)

    return act


@pytest.mark.parametrize("calls", [300, 500, 700])  # of about 850; the first 100 are those of the check before it
def test_a_latch_that_switched_is_an_error(calls):
    with pytest.raises(RunError, match=r"the policy .* chose another action") as error:
        verify(Walk, ALWAYS, policy=latched_after(calls), max_episodes=150)
    assert "reset() and act(observation)" in str(error.value)


def test_a_latch_that_had_switched_before_the_first_episode_is_an_error():
    """The counted episodes agree with each other; a copy from before them does not."""
    with pytest.raises(RunError, match=r"the policy .* chose another action"):
        verify(Walk, ALWAYS, policy=latched_after(100), max_episodes=150)


def test_a_latch_that_a_violation_switches_is_an_error():
    learned = []

    def act(observation):
        """Avoid what went wrong once; alone, it would go wrong again."""
        if observation[0] > 1.9:
            learned.append(True)
        return int(observation[0] > 1.2 and not learned)

    with pytest.raises(RunError, match="chose another action"):
        verify(Walk, "P>=0.9 [ G (obs[0] <= 1.9) ] & C>=0.9", policy=act, max_episodes=400, seed=1)


def test_the_certificate_says_that_a_function_was_checked_on_some_episodes_only():
    said = " ".join(verify(Walk, ALWAYS).notes)
    assert "keeps no memory between episodes was checked on at most 16 replayed episodes only" in said


def test_an_external_policy_that_remembers_in_a_compiled_domain_is_an_error():
    domain = psyco.make("obstacle-run")
    requirement = "P>=0.5 [ G (step <= 100) ] & C>=0.9"
    psyco.verify(lambda observation: 0, domain, requirement, method="fixed", max_episodes=40)
    with pytest.raises(RunError, match="chose another action"):
        psyco.verify(latched_after(1700), domain, requirement, method="fixed", max_episodes=80)
