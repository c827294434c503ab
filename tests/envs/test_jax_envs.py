"""gymnax and brax environments as compiled domains."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import psyco
from psyco._src.envs.actions import Continuous, Discrete
from psyco._src.policies.network import network_for
from psyco._src.policies.serialization import policy_for
from psyco._src.rollout.episodes import Stream, episode_keys, stream_key

pytestmark = pytest.mark.slow  # needs extras


@pytest.mark.extra("gymnax")
def test_an_episode_is_gymnaxs_own_until_it_ends_and_then_stays_there() -> None:
    import gymnax

    domain = psyco.make("gymnax:CartPole-v1", horizon=40)
    assert domain.actions == Discrete(2)
    network = network_for(domain)
    theta = network.init(jax.random.key(1))
    policy = policy_for(domain, network, theta)
    path = psyco.record(policy, domain, seed=5)
    (key,) = episode_keys(stream_key(5, Stream.RECORD), 0, 1)

    # The same by gymnax's auto-resetting step; the observation before its reset is in `info`.
    env, params = gymnax.make("CartPole-v1")
    key_reset, key_steps, _ = jax.random.split(key, 3)
    obs, state = env.reset_env(key_reset, params)
    seen, done = [obs], False
    for step_key in jax.random.split(key_steps, 40):
        obs, state, _, terminated, _, info = env.step(step_key, state, int(policy(np.asarray(obs))), params)
        seen.append(info["final_observation"])
        done = bool(terminated)
        if done:
            break
    assert done
    assert path["terminated"].tolist() == [False] * (len(seen) - 1) + [True]
    np.testing.assert_allclose(path["obs"], jnp.stack(seen), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(path["x"], path["obs"][:, 0])


@pytest.mark.extra("gymnax")
def test_gymnax_parameters_are_checked_and_used() -> None:
    domain = psyco.make("gymnax:Pendulum-v1", max_torque=1.5)
    assert domain.actions == Continuous((-1.5,), (1.5,))
    assert psyco.make(domain.name, **domain.parameters) == domain
    with pytest.raises(psyco.DomainError, match="did you mean 'max_torque'"):
        psyco.make("gymnax:Pendulum-v1", max_torqe=1.0)
    with pytest.raises(psyco.DomainError, match="give horizon"):
        psyco.make("gymnax:Pendulum-v1", max_steps_in_episode=10)
    with pytest.raises(psyco.DomainError, match="did you mean 'CartPole-v1'"):
        psyco.make("gymnax:CartPol-v1")


@pytest.mark.extra("gymnax")
def test_a_gymnax_policy_can_be_synthesized() -> None:
    result = psyco.synthesize(
        psyco.make("gymnax:CartPole-v1", horizon=50),
        "P>=0.5 [ G (abs(x) <= 2) ] & C>=0.9",
        episodes=200,
        settings=psyco.Settings(max_episodes=100),
    )
    assert result.certificate.verdict is psyco.Verdict.SATISFIED


@pytest.mark.extra("brax")
def test_a_brax_environment_is_a_domain() -> None:
    domain = psyco.make("brax:fast", horizon=10)
    network = network_for(domain)
    path = psyco.record(policy_for(domain, network, np.ones(network.size)), domain)
    assert path["obs"].shape == (11, 2)
    assert np.all(np.diff(path["return"]) >= 0)  # it is rewarded for how far it got
    with pytest.raises(psyco.DomainError, match="brax has no environment"):
        psyco.make("brax:slow")
