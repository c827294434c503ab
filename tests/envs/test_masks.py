"""Action masks: what a state does not offer is not chosen, by learners, policies of any kind, baselines and exports."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import binom

import psyco
from psyco import DomainError, RunError
from psyco._src.core.errors import EpisodeError
from psyco._src.envs.actions import Discrete, first_offered
from psyco._src.envs.adversary import Disturbance, check_attackable
from psyco._src.learners.distributions import log_likelihood
from psyco._src.learners.learner_registry import make_learner
from psyco._src.learners.ppo import PPO
from psyco._src.learners.table import _offered_actions
from psyco._src.logic.parser import parse
from psyco._src.policies.external import as_policy
from psyco._src.policies.network import Network, network_for, table_for
from psyco._src.policies.serialization import Policy, load_policy, policy_for
from psyco._src.rollout.episodes import Stream, episode_keys, stream_key
from psyco._src.rollout.record import record_episodes
from psyco._src.rollout.sampler import make_sampler
from psyco._src.runs.behaviour_cloning import _demonstrations, clone
from tests.environments import Doors
from tests.making import learned, prepared
from tests.policies.test_c_export import build, run

FREE = "P>=0.9 [ G !trapped ] & C>=0.9"
OFFERS = np.array(Doors().offers)


def random_policy(domain: Any = None, hidden: int = 8, seed: int = 0) -> Policy:
    network = network_for(domain or Doors(), hidden=hidden)
    return policy_for(domain or Doors(), network, 3 * network.init(jax.random.key(seed)))


def random_observations(count: int = 500) -> np.ndarray[Any, Any]:
    rng = np.random.default_rng(0)
    mask = rng.integers(0, 2, (count, 3))
    mask[np.arange(count), rng.integers(0, 3, count)] = 1
    return np.concatenate([rng.normal(size=(count, 3)), mask], axis=1).astype(np.float32)


@pytest.mark.parametrize(
    "learner",
    [
        "safe-es",
        *(pytest.param(name, marks=pytest.mark.more) for name in ("snes", "ppo", "sac", "table")),
        pytest.param("evosax", marks=[pytest.mark.more, pytest.mark.extra("evosax")]),
    ],
)
def test_no_episode_of_learning_takes_what_is_not_offered(learner: str) -> None:
    """Without the mask, random policies are trapped; so they would be here if a learner forgot it."""
    found = learned(prepared(Doors(), FREE, learner=learner, episodes=60, verify_every=0, population=10))
    assert (np.asarray(found.metrics["satisfied"]) == 1.0).all()
    bare = make_sampler(Doors(has_mask=False), Network(3, 3), parse(FREE))
    theta = jax.vmap(Network(3, 3).init)(episode_keys(stream_key(0, Stream.TRAIN), 0, 20))
    assert np.asarray(bare(theta, episode_keys(stream_key(0, Stream.TRAIN), 1, 20)).satisfied).mean() < 0.9


@pytest.mark.more
def test_the_table_learns_the_best_of_what_is_offered() -> None:
    """Three doors lead out, each opens with probability 3/4."""
    problem = prepared(Doors(), FREE, learner="table", episodes=600, verify_every=0, population=30)
    policy = problem.policy(problem.wrapped_learner.deployed(learned(problem).at.state))
    assert [int(policy(room, mask=mask)) for room, mask in enumerate(OFFERS)][:2] == [1, 1]
    value = psyco.exact(policy, Doors(), FREE).value
    assert value.expected_return == pytest.approx(binom.sf(2, 8, 0.75)) and value.probabilities == (1.0,)
    missing = jnp.array([[False, True, True], [True, True, False]])
    np.testing.assert_array_equal(_offered_actions(missing), [[0, 0, 0], [2, 2, 2]])


def test_the_optimum_is_over_what_is_offered() -> None:
    """Three doors of eight must open; without the mask two are enough, since door 0 skips a room."""
    for domain, doors in ((Doors(), 3), (Doors(has_mask=False), 2)):
        best = psyco.exact(lambda observation: 2, domain, "Rmax=? [ C ]").optimum
        assert best is not None and best.expected_return == pytest.approx(binom.sf(doors - 1, 8, 0.75))


def test_random_actions_are_drawn_among_those_offered() -> None:
    """1,000 first actions of two offered: the share of each is within 0.42 to 0.58 but with probability below 1e-6."""
    from psyco._src.rollout.jax_sampler import record_batch
    from psyco._src.runs.baselines import UNIFORM_STD, _trivial_plays

    problem = prepared(Doors(), FREE, learner="safe-es", episodes=2000)
    plays = _trivial_plays(problem)
    names = [play.name for play in plays]
    assert names[:2] == ["random actions", "always action 0 where it is offered"]
    keys = episode_keys(stream_key(0, Stream.BASELINE), 0, 1000)
    theta = jnp.tile(plays[0].theta, (1000, 1))
    signals, _ = record_batch(problem.domain, plays[0].network, None, theta, keys, UNIFORM_STD)
    first = np.bincount(signals["action"][:, 0], minlength=3) / 1000
    assert first[0] == 0.0 and 0.42 < first[1] < 0.58
    assert not signals["trapped"].any()


def test_an_external_policy_takes_the_first_offered_action_instead_of_another() -> None:
    certificate = psyco.verify(lambda observation: 0, Doors(), FREE, seed=0)
    assert certificate.verdict is psyco.Verdict.SATISFIED
    for episode in record_episodes(Doors(), as_policy(lambda observation: 0), seed=0, count=5):
        rooms, actions = episode["room"][:-1], episode["action"][1:]
        np.testing.assert_array_equal(actions, np.array([1, 1, 0])[rooms])
    np.testing.assert_array_equal(first_offered(np.array([2, 1]), np.array([[1.0, 1.0, 0.0], [1.0, 1.0, 0.0]])), [0, 1])


def test_a_guard_chooses_what_is_offered() -> None:
    guard = psyco.Guard(
        random_policy(), lambda observation: 0, "P>=0.5 [ G (tries <= 2) ]", horizon=8, counters=["tries"]
    )

    @dataclasses.dataclass(frozen=True)
    class Counted(Doors):
        def signals(self, state: Any) -> Any:
            return {**state._asdict(), "tries": state.room}

    assert psyco.verify(guard, Counted(), FREE, seed=0).verdict is psyco.Verdict.SATISFIED


def test_compiled_and_numpy_policies_agree_and_never_choose_what_is_missing() -> None:
    policy, x = random_policy(), random_observations()
    act = jax.vmap(lambda row: policy.network.act(policy.actions, jnp.asarray(policy.theta), row))
    chosen = policy(x)
    np.testing.assert_array_equal(chosen, act(jnp.asarray(x)))
    assert (x[np.arange(len(x)), 3 + chosen] == 1).all()
    free = x.copy()
    free[:, 3:] = 1
    assert (policy(free) != chosen).mean() > 0.1
    np.testing.assert_array_equal(policy(x[:, :3], mask=x[:, 3:]), chosen)


def test_a_policy_says_that_it_needs_a_mask() -> None:
    policy = random_policy()
    for arguments, words in [
        (([0, 0, 1],), "which of 3 actions are offered: give mask"),
        (([0, 0, 1], [0, 0, 0]), "offers no action"),
        (([0, 0, 1], [1, 1]), "3 numbers, 0 or 1"),
        (([0, 0, 1], [2, 1, 0]), "3 numbers, 0 or 1"),
    ]:
        with pytest.raises(RunError, match=words):
            policy(*arguments)
    bare = random_policy(Doors(has_mask=False))
    with pytest.raises(RunError, match=r"takes no mask: .*Doors offers every action"):
        bare([0, 0, 1], mask=[1, 1, 1])
    with pytest.raises(RunError, match="shift must be 0"):
        Network(6, 3, 4, "learned", shift=(0.0,) * 5 + (1.0,), scale=(1.0,) * 6, masked=True)
    wide = Policy(np.zeros(Network(6, 3).size, np.float32), Network(6, 3), Discrete(3), "doors", {})
    with pytest.raises(RunError, match=r"which offers all actions in every state; doors offers some"):
        wide.check(Doors())


def test_a_file_says_whether_a_policy_is_masked(tmp_path: Path) -> None:
    random_policy().save(tmp_path / "masked")
    random_policy(Doors(has_mask=False)).save(tmp_path / "bare")
    assert load_policy(tmp_path / "masked").network == random_policy().network
    assert b"masked" in (tmp_path / "masked").read_bytes() and b"masked" not in (tmp_path / "bare").read_bytes()


@pytest.mark.slow
def test_exported_c_has_the_same_actions(compiler: str, tmp_path: Path) -> None:
    from psyco._src.policies.c_export import c_files

    policy, x = random_policy(), random_observations()
    rows = np.concatenate([np.zeros((len(x), 1), np.float32), x], axis=1)
    found = run(build(compiler, tmp_path, c_files(policy)), rows)
    np.testing.assert_array_equal(found[:, 0], policy(x))


@pytest.mark.extra("onnx", "onnxruntime")
@pytest.mark.parametrize("table", [False, True])
def test_exported_onnx_has_the_same_actions(table: bool) -> None:
    import onnxruntime

    from psyco._src.policies.onnx_export import export_onnx, to_onnx

    policy = random_policy()
    if table:
        network = table_for(Doors())
        policy = policy_for(Doors(), network, network.init(jax.random.key(1)))
    x = random_observations()
    session = onnxruntime.InferenceSession(to_onnx(policy), providers=["CPUExecutionProvider"])
    np.testing.assert_array_equal(session.run(None, {"observation": x})[0], policy(x))
    export_onnx(policy, "/dev/null")


def test_the_likelihood_of_an_action_is_that_among_those_offered() -> None:
    """Three scores, of which two are offered: the likelihood of the third does not depend on the missing one."""
    network = Network(6, 3, 4, masked=True)
    theta = network.init(jax.random.key(0))
    x = jnp.array([1.0, 0.0, 0.0, 1.0, 0.0, 1.0])
    masked, free = network.scores(theta, x), network.scores(theta, x.at[3:].set(1.0))
    action = jnp.array([0.0, 0.0, 1.0])
    found = log_likelihood(Discrete(3), masked, jnp.float32(0.5), action)
    wanted = log_likelihood(Discrete(2), free[jnp.array([0, 2])], jnp.float32(0.5), jnp.array([0.0, 1.0]))
    assert float(found) == pytest.approx(float(wanted), rel=1e-6)
    learner: Any = make_learner(PPO(), parse(FREE), network=network, actions=Discrete(3), horizon=8, episode_budget=100)
    gradient = jax.grad(lambda t: log_likelihood(Discrete(3), learner._scores(t, x[None])[0], jnp.float32(0.1), action))
    assert np.isfinite(gradient(theta)).all() and np.abs(gradient(theta)).max() > 0


def test_what_masks_exclude_is_an_error_in_demonstrations() -> None:
    rooms = np.eye(3, dtype=np.float32)[[0, 1]]
    shown = np.concatenate([rooms, OFFERS[[0, 1]]], axis=1)
    data = _demonstrations("a file", [(shown, np.array([1, 0]))], Doors())
    with pytest.raises(RunError, match="a file has the action 0 in a state that does not offer it"):
        clone(data, Doors(), hidden=4, seed=0)


def test_bad_masks_are_errors_with_a_place() -> None:
    nothing = Doors(offers=((0, 1, 1), (0, 0, 0), (1, 1, 0)))
    with pytest.raises(EpisodeError, match="the action mask offers no action; one at least must be 1"):
        psyco.verify(random_policy(), nothing, FREE, seed=0)
    with pytest.raises(DomainError, match="has action masks, and an adversary learns in domains without them"):
        check_attackable(Doors(), Disturbance("obs", 0.1))

    @dataclasses.dataclass(frozen=True)
    class Wrong(Doors):
        actions: ClassVar[Discrete] = Discrete(7)

    with pytest.raises(DomainError, match=r"a mask is for Discrete\(n\) actions"):
        psyco.verify(lambda observation: 0, Wrong(), FREE)


MODEL = """mdp
module m
 s : [0..4] init 0;
 [a] s=0 -> 0.5 : (s'=1) + 0.5 : (s'=2);
 [b] s=0 -> (s'=2);
 [c] s=0 -> (s'=3);
 [a] s=1 -> (s'=3);
 [b] s=2 -> (s'=0);
 [c] s=2 -> (s'=4);
endmodule
"""


@pytest.mark.extra("stormpy")
def test_a_model_offers_the_choices_of_its_states(tmp_path: Path) -> None:
    file = tmp_path / "model.prism"
    file.write_text(MODEL)
    domain: Any = psyco.make(str(file), horizon=6)
    assert domain.has_mask and domain.observation_size == 1 + 3
    order = np.argsort(domain.tables.variables["s"])
    np.testing.assert_array_equal(
        domain.observations[order, 1:], [[1, 1, 1], [1, 0, 0], [1, 1, 0], [1, 0, 0], [1, 0, 0]]
    )
    table: Any = psyco.make(str(file), horizon=6, observe="index")
    state = domain.reset(None)
    np.testing.assert_array_equal(table.observe(state), [domain.initial_state, 1, 1, 1])
    assert table_for(table).indexed and not psyco.make("examples/courier.prism", N=3, horizon=4).has_mask
    # The values of a policy by Storm are those of its episodes.
    policy = random_policy(domain, seed=3)
    exact = psyco.exact(policy, domain, "P>=0.5 [ F s=4 ]").value.probabilities[0]
    certificate = psyco.verify(policy, domain, "P=? [ F s=4 ]", seed=0, max_episodes=2000)
    assert abs(certificate.answers[0].mean - exact) < 0.06  # five standard errors
