"""Behaviour cloning: a network learns the actions of demonstrations, and learning starts from it.

Demonstrations are episodes of an external policy, a Minari dataset, or recorded traces with observations and actions.
"""

from __future__ import annotations

import dataclasses
import json
import operator
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from gymnasium import spaces
from jax import Array
from numpy.typing import NDArray

from psyco._src.core.errors import RunError, format_exception
from psyco._src.core.files import read_bytes
from psyco._src.core.wording import plural
from psyco._src.envs.actions import Actions, Continuous, Discrete, MultiBinary, MultiDiscrete
from psyco._src.envs.agents import agents_of
from psyco._src.envs.base import Domain
from psyco._src.envs.gym_env import GymDomain
from psyco._src.learners.distributions import log_likelihood, offered_scores
from psyco._src.policies.external import HostPolicy
from psyco._src.policies.network import NOT_OFFERED, Hidden, Network, has_mask, network_for
from psyco._src.policies.serialization import Policy, policy_for
from psyco._src.rollout.episodes import Stream, episode_keys, stream_key
from psyco._src.rollout.execution import IN_PROCESS, Execution
from psyco._src.rollout.obs_normalization import MAX_NORMALIZED, standardization
from psyco._src.rollout.record import record_signals
from psyco._src.verification.recorded_traces import read_signals

DEMONSTRATED_STEPS, MIN_EPISODES, MAX_EPISODES = 10_000, 8, 100  # that an external policy plays
UPDATES, UPDATES_PER_REPORT, BATCH_SIZE, LEARNING_RATE = 2000, 200, 256, 3e-3
SCORE_STD = 0.5  # noise under which discrete actions are likely: that of `ppo` at its start
# Noise on larger scores hardly changes an action, so learning could not go on; `ppo` pulls those beyond 1.5 back.
SCORE_LIMIT = 1.0  # of scores that rank actions
OUTPUT_LIMIT = 0.96  # of continuous outputs in [-1, 1]: scores of about 2
SIGNALS = frozenset({"obs", "action"})
TRACE_SUFFIXES = (".csv", ".json", ".jsonl", ".ndjson")
MINARI_METADATA = "metadata.json"


class Demonstrations(NamedTuple):
    """Observations and the actions taken there."""

    source: str  # in words
    episodes: int
    observations: NDArray[np.float32]  # [N, inputs]
    actions: NDArray[np.float64]  # [N, size], as the signal `action`


# ---- demonstrations ---------------------------------------------------------------------------------------------


def play_demonstrations(
    policy: HostPolicy, domain: Domain, seed: int, execution: Execution = IN_PROCESS
) -> Demonstrations:
    """Return demonstrations by a policy: episodes of about 10,000 steps in all, 8 to 100 of them."""
    count = min(max(-(-DEMONSTRATED_STEPS // domain.horizon), MIN_EPISODES), MAX_EPISODES)
    keys = episode_keys(stream_key(seed, Stream.CLONE), 0, count)
    theta = np.broadcast_to(policy.theta, (count, policy.theta.size))
    paths = record_signals(domain, policy.network, theta, keys, SIGNALS, execution)
    return from_signals(paths, policy.source, domain)


def read_demonstrations(source: Any, domain: Domain) -> Demonstrations | None:
    """Return the demonstrations of an argument; None if it stands for something else.

    Args:
        source: recorded signals of an episode (`psyco.record`) or of several, the name of a file of traces as
            `psyco verify --traces` reads them, the folder of a Minari dataset, or a `MinariDataset`.
        domain: whose observations and actions they are.
    """
    if isinstance(source, Mapping):
        source = [source]
    if isinstance(source, list | tuple) and all(isinstance(path, Mapping) for path in source):
        return from_signals(source, "the list of episodes", domain)
    if hasattr(source, "storage") and hasattr(source, "episode_indices"):  # a MinariDataset, or a part of it
        return _from_minari(source.storage, source.episode_indices, "a Minari dataset", domain)
    if not isinstance(source, str | Path):
        return None
    path = Path(source)
    if path.suffix in TRACE_SUFFIXES:
        return from_signals(read_signals(read_bytes(path, "recording"), SIGNALS, str(path)), str(path), domain)
    for folder in (path, path / "data"):
        if os.path.isfile(folder / MINARI_METADATA):  # False, not an error, for an impossible name
            return _read_minari(folder, str(path), domain)
    return None


def from_signals(paths: Sequence[Mapping[str, Any]], source: str, domain: Domain) -> Demonstrations:
    """Return demonstrations from signals along episodes: `obs` and `action`, n+1 rows for n steps."""
    for path in paths:
        if not path.keys() >= SIGNALS:
            raise RunError(f"{source} has no signal {min(SIGNALS - path.keys())!r}; demonstrations have obs and action")
        if len(path["obs"]) != len(path["action"]):
            raise RunError(f"{source}: an episode has {len(path['obs'])} rows of obs, {len(path['action'])} of action")
    # `action` of a state is the action that led to it.
    return _demonstrations(source, [(path["obs"][:-1], path["action"][1:]) for path in paths], domain)


def _read_minari(folder: Path, source: str, domain: Domain) -> Demonstrations:
    """Read a dataset folder with Minari, in any of its formats."""
    try:
        from minari.dataset.minari_storage import MinariStorage
    except ImportError:
        raise RunError(
            f'{source} is a Minari dataset and needs Minari installed: pip install "psyco[minari]"'
        ) from None
    try:
        metadata = json.loads(read_bytes(folder / MINARI_METADATA, "recording"))
        # Without its spaces, Minari would make the environment that the file names, and so run its code.
        if not {"observation_space", "action_space"} <= metadata.keys():
            raise RunError(f"{source} has no observation_space and action_space in {MINARI_METADATA}")
        storage = MinariStorage.read(folder)
        return _from_minari(storage, range(storage.total_episodes), source, domain)
    except RunError:
        raise
    except Exception as error:  # a damaged dataset may fail anywhere
        raise RunError(f"Minari cannot read {source}: {format_exception(error)}") from error


def _from_minari(storage: Any, indices: Iterable[int], source: str, domain: Domain) -> Demonstrations:
    flatten = None
    if isinstance(domain, GymDomain) and not isinstance(domain.observation_space, spaces.Box):
        flatten = domain.flatten
    pairs = []
    for episode in storage.get_episodes(indices):
        observations, actions = episode["observations"], episode["actions"]
        try:
            if flatten is not None:
                rows = (jax.tree.map(operator.itemgetter(i), observations) for i in range(len(actions)))
                observations = [flatten(row) for row in rows]
            pairs.append((observations[: len(actions)], actions))  # the last observation has no action
        except (LookupError, TypeError, ValueError) as error:
            raise RunError(f"{source} does not fit {domain.name}: {format_exception(error)}") from None
    return _demonstrations(source, pairs, domain)


def _demonstrations(source: str, pairs: Sequence[tuple[Any, Any]], domain: Domain) -> Demonstrations:
    """Join observations and actions of episodes, checked against the domain."""
    pairs = [pair for pair in pairs if len(pair[1])]
    if not pairs:
        raise RunError(f"{source} has no step to learn from")
    try:
        observations = np.concatenate([np.asarray(x, np.float32).reshape(len(a), -1) for x, a in pairs])
        actions = np.concatenate([np.asarray(a, np.float64).reshape(len(a), -1) for _, a in pairs])
    except (TypeError, ValueError) as error:
        raise RunError(f"{source}: observations or actions are no arrays of numbers ({error})") from None
    found, size = (observations.shape[1], actions.shape[1]), domain.actions.size or 1
    if found != (domain.observation_size, size):
        raise RunError(
            f"{source} has observations of {found[0]} numbers and actions of {found[1]}; {domain.name} has "
            f"{domain.observation_size} and {size}"
        )
    if not np.isfinite(observations).all() or not np.isfinite(actions).all():
        raise RunError(f"{source} has an observation or an action that is not finite")
    return Demonstrations(source, len(pairs), observations, actions)


# ---- cloning ----------------------------------------------------------------------------------------------------


def clone(
    demonstrations: Demonstrations,
    domain: Domain,
    *,
    hidden: Hidden,
    seed: int,
    report: Callable[[int, int], None] = lambda done, total: None,
) -> Policy:
    """Return a policy whose network was fitted to the actions of demonstrations; it is a function of the seed.

    Args:
        demonstrations: observations and actions.
        domain: whose observations and actions they are.
        hidden: hidden units of the network; its biases are learned.
        seed: of initial parameters and minibatches.
        report: called with the number of updates so far, and of all.
    """
    source, episodes, x, actions = demonstrations
    if agents := agents_of(domain):
        raise RunError(
            f"{domain.name} has the agents {', '.join(agents)}, and demonstrations are cloned for one agent: start "
            "from a joint policy that was learned (--from RUN)"
        )
    targets = _targets(source, actions, domain)
    if has_mask(domain):
        missing = ~(targets * x[:, -targets.shape[1] :]).any(axis=1)
        if missing.any():
            raise RunError(f"{source} has the action {actions[missing][0, 0]:g} in a state that does not offer it")
    shift, scale = standardization(x.astype(np.float64), MAX_NORMALIZED)
    network = dataclasses.replace(network_for(domain, hidden=hidden, bias="learned"), shift=shift, scale=scale)
    rows, wanted = jnp.asarray(x), jnp.asarray(targets)
    key = stream_key(seed, Stream.CLONE, 1)
    theta = network.init(key)
    state = OPTIMIZER.init(theta)
    for done in range(0, UPDATES, UPDATES_PER_REPORT):
        report(done, UPDATES)
        theta, state = _update(network, domain.actions, rows, wanted, jax.random.fold_in(key, done), theta, state)
        theta.block_until_ready()
    report(UPDATES, UPDATES)
    policy = policy_for(domain, network, theta)
    data = f"{plural(episodes, 'episode')}, {plural(len(x), 'step')}"
    words = f"behaviour cloning of {source} ({data}; {_agreement(policy, x, targets)})"
    return dataclasses.replace(policy, origin=words)


OPTIMIZER = optax.adam(optax.cosine_decay_schedule(LEARNING_RATE, UPDATES))


@partial(jax.jit, static_argnums=(0, 1))
def _update(
    network: Network, actions: Actions, x: Array, targets: Array, key: Array, theta: Array, state: optax.OptState
) -> tuple[Array, optax.OptState]:
    """Return parameters and the optimizer's state after `UPDATES_PER_REPORT` updates."""

    def loss(theta: Array, rows: Array) -> Array:
        scores = jax.vmap(network.scores, (None, 0))(theta, x[rows])
        if isinstance(actions, Continuous):
            return jnp.mean((jnp.tanh(scores) - jnp.clip(targets[rows], -OUTPUT_LIMIT, OUTPUT_LIMIT)) ** 2)
        beyond = jnp.sum(jnp.maximum(jnp.abs(offered_scores(network, scores)) - SCORE_LIMIT, 0.0) ** 2, axis=-1)
        return jnp.mean(beyond - log_likelihood(actions, scores, jnp.float32(SCORE_STD), targets[rows]))

    def step(carry: Any, key: Array) -> Any:
        theta, state = carry
        rows = jax.random.randint(key, (BATCH_SIZE,), 0, len(x))
        change, state = OPTIMIZER.update(jax.grad(loss)(theta, rows), state)
        return (optax.apply_updates(theta, change), state), None

    after: tuple[Array, optax.OptState]
    after, _ = jax.lax.scan(step, (theta, state), jax.random.split(key, UPDATES_PER_REPORT))
    return after


def _targets(source: str, actions: NDArray[np.float64], domain: Domain) -> NDArray[np.float32]:
    """Return the network's outputs `[N, outputs]` for actions: in [-1, 1], or as in `learners/distributions.py`."""
    space = domain.actions
    if isinstance(space, Continuous):
        low, high = np.array(space.low), np.array(space.high)
        return np.clip(2.0 * (actions - low) / (high - low) - 1.0, -1.0, 1.0).astype(np.float32)
    start = np.ravel(getattr(domain.action_space, "start", 0)) if isinstance(domain, GymDomain) else 0
    choices, sizes = actions - start, _alternatives(space)
    wrong = (choices < 0) | (choices >= sizes) | (choices != np.rint(choices))
    if wrong.any():
        raise RunError(f"{source} has the action {actions[wrong][0]:g}, which is not in {space}")
    if isinstance(space, MultiBinary):
        return choices.astype(np.float32)
    columns = [np.eye(size, dtype=np.float32)[choices[:, i].astype(int)] for i, size in enumerate(sizes)]
    return np.concatenate(columns, axis=1)


def _alternatives(space: Discrete | MultiDiscrete | MultiBinary) -> tuple[int, ...]:
    """Return the number of alternatives of each choice."""
    if isinstance(space, MultiBinary):
        return (2,) * space.n
    return (space.n,) if isinstance(space, Discrete) else space.n


def limit_scores(policy: Policy, observations: NDArray[np.float32]) -> Policy:
    """Return the policy with the same ranking of discrete actions, by scores that rarely exceed `SCORE_LIMIT`."""
    assert not isinstance(policy.actions, Continuous), "their scores are actions"
    network, last = policy.network, len(policy.network.layers)
    parts = [part.astype(np.float64) for part in network.unflatten(policy.theta)]
    if not isinstance(policy.actions, MultiBinary):  # only differences between the alternatives of a choice count
        ends = np.cumsum(_alternatives(policy.actions))[:-1]
        for i in (last, -1):  # weights and biases of the last layer
            parts[i] = np.concatenate([part - part.mean(axis=0) for part in np.split(parts[i], ends)])

    def parameters() -> NDArray[np.float32]:
        return np.concatenate([part.ravel() for part in parts]).astype(np.float32)

    scores = network.numpy_scores(parameters()[None])(observations)
    largest = np.percentile(np.abs(scores[scores > NOT_OFFERED]), 99)
    for i in (last, -1):
        parts[i] *= SCORE_LIMIT / max(largest, SCORE_LIMIT)
    return dataclasses.replace(policy, theta=parameters())


def _agreement(policy: Policy, x: NDArray[np.float32], targets: NDArray[np.float32]) -> str:
    """Return how well a policy fits the demonstrations, in words."""
    decoded, wanted = policy(x), policy.actions.decode(targets)
    if isinstance(policy.actions, Continuous):
        width = np.subtract(policy.actions.high, policy.actions.low)
        return f"mean error {np.mean(np.abs(decoded - wanted) / width):.2%} of the range of an action"
    return f"{np.mean(decoded == wanted):.1%} of the actions are the same"
