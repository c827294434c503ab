"""Proximal policy optimization with two advantages: one of the return, one of the costs, weighed by the Bayesian λ.

An actor-critic sees every step of its episodes, where an evolution strategy sees their sums. It needs:

- exploration: Gaussian noise on the scores of the policy network, before they become an action. The disturbed scores
  are the action of this algorithm and their probability is Gaussian, whatever the domain makes of them. Without noise
  the policy is the one that is deployed;
- critics: networks that expect what is still to come of return and of each cost. They belong to the learner, not to
  the policy, and see the time beside the observation;
- the steps at which a cost arises (`Monitor.blame`), so that it is held against what led to it.

As in safe-es, each generation also plays a few episodes without noise; they alone feed the belief and λ.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from psyco._src.errors import RunError
from psyco._src.learn.base import Proposal, Weighing
from psyco._src.learn.belief import Belief, single_precision
from psyco._src.learn.means import Mean, step_costs
from psyco._src.learn.steering import Steered, blend, default_gain
from psyco._src.policy.network import Network
from psyco._src.rollout.episodes import Episodes, Trace

RECENT = 20  # generations over which means and spreads are taken


class Spread(NamedTuple):
    """Mean and variance of some columns over recent generations."""

    mean: Array
    variance: Array


class PPOState(NamedTuple):
    """The policy, its critics, and what is believed about it."""

    theta: Array  # [D]
    critics: dict[str, Array]  # weights of 1 + K networks, of the return and of each cost
    seen: Spread  # [I] of what the critics see
    worth: Spread  # [1 + K] of what they expect
    optimizer: Any  # of optax
    belief: Belief
    lam: Array  # [K]
    generation: Array  # [] int32


class Batch(NamedTuple):
    """N steps to learn from."""

    obs: Array  # [N, inputs]
    seen: Array  # [N, I] what critics see
    scores: Array  # [N, outputs] of the policy that played
    disturbance: Array  # [N, outputs]
    advantage: Array  # [N]
    target: Array  # [N, 1 + K] what the critics should have said
    alive: Array  # [N] 1 for steps that were taken


@dataclass(frozen=True)
class PPO(Steered):
    """An actor-critic. The options that it shares with `SafeES` mean the same.

    Args:
        p_req: required probability of each demand for one.
        c_req: required confidence of each demand, of probabilities first.
        network: of the policy.
        means: the demands for means.
        budget: training episodes of the whole run; rate, noise and demand follow schedules over them.
        population: exploring episodes per generation; 0: what gives about 1500 generations, from 20 to 200.
        checks: episodes without noise in each generation, which feed belief and λ; 0: a tenth of the population.
        alpha: learning rate of Adam at the beginning, which falls to 0 along a cosine; 0: by the number of generations,
            from 0.001 for a thousand to 0.003 for a hundred.
        epochs: how often each step is learned from; 0: likewise, from 4 to 10.
        minibatches: into how many parts each epoch is cut.
        clip: how far the odds of a disturbed score may move in one generation before it no longer counts.
        discount: of later rewards and costs; 0: from 0.95 for horizons up to 50 to 0.99 for those from 250 on.
        smoothing: λ of generalized advantage estimation, 0 trusts the critics, 1 the episodes.
        std: standard deviation of the noise on the scores at the beginning,
        std_end: and at the end of learning; in between it falls geometrically.
        reach: scores beyond this size are drawn back.
        critic: hidden units in both layers of each critic.
        margin: aim above the requirement, by this part of what is left up to 1.
        curriculum: the demand rises from nothing to its full size over this part of learning.
        gain: how fast λ moves per generation; 0: by 0.01, and faster where there are few generations.
        memory: how many generations the belief remembers.
        sign: 1 to maximise the return, -1 to minimise it.
    """

    p_req: tuple[float, ...]
    c_req: tuple[float, ...]
    network: Network
    means: tuple[Mean, ...] = ()
    budget: int = 60_000
    population: int = 0
    checks: int = 0
    alpha: float = 0.0
    epochs: int = 0
    minibatches: int = 4
    clip: float = 0.2
    discount: float = 0.0
    smoothing: float = 0.95
    std: float = 0.5
    std_end: float = 0.3
    reach: float = 1.5
    critic: int = 32
    margin: float = 0.3
    curriculum: float = 0.5
    gain: float = 0.0
    memory: float = 100.0
    sign: float = 1.0

    def __post_init__(self) -> None:
        if self.population == 0:
            object.__setattr__(self, "population", min(max(self.budget // 1500, 20), 200))
        if self.checks == 0:
            object.__setattr__(self, "checks", max(2, self.population // 10))
        self._check_whole("population", "checks", "minibatches", "critic")
        # Few generations must make more of each.
        few = 1000 / max(self.generations, 1)
        object.__setattr__(self, "alpha", self.alpha or 0.001 * min(max(few, 1.0), 10.0) ** 0.5)
        object.__setattr__(self, "epochs", self.epochs or round(min(max(4 * few, 4), 10)))
        self._check_whole("epochs")
        for name in ("alpha", "clip", "std", "std_end", "reach"):
            if not getattr(self, name) > 0:
                raise RunError(f"{name} must be positive, got {getattr(self, name)}")
        for name in ("discount", "smoothing"):
            if not 0 <= getattr(self, name) <= 1:
                raise RunError(f"{name} must be from 0 to 1, got {getattr(self, name)}")
        object.__setattr__(self, "gain", self.gain or default_gain(self.generations))
        _ = self.steering  # checks the options that are its own

    def _check_whole(self, *names: str) -> None:
        for name in names:
            if getattr(self, name) < 1:
                raise RunError(f"{name} must be at least 1, got {getattr(self, name)}")

    def init(self, theta: Array) -> PPOState:
        """The policy as it is given, critics that expect nothing, all weight on return."""
        theta = jnp.asarray(theta, jnp.float32)
        inputs, count = self.network.inputs + 1, 1 + len(self.c_req)
        critics = _critics(count, inputs, self.critic)
        seen, worth = _unknown(inputs), _unknown(count)
        optimizer = self._transform().init((theta, critics))
        return PPOState(theta, critics, seen, worth, optimizer, *self.steering.init(), jnp.int32(0))

    def propose(self, key: Array, state: PPOState) -> Proposal:
        """Episodes that explore, then some that do not; all with the same parameters."""
        part = jnp.minimum(state.generation / self.generations, 1.0)
        std = self.std * (self.std_end / self.std) ** part
        explores = jnp.arange(self.episodes_per_generation) < self.population
        rows = jnp.where(explores, std, 0.0).astype(jnp.float32)
        return Proposal(
            jnp.broadcast_to(state.theta, (len(rows), state.theta.size)),
            key,
            std=jnp.broadcast_to(rows[:, None], (len(rows), self.network.outputs)),
        )

    def update(self, state: PPOState, proposal: Proposal, episodes: Episodes) -> tuple[PPOState, Weighing]:
        """Believe what the policy showed without noise, judge the steps of the others, and learn from them."""
        belief, c_sat, each = self.steer(state, episodes)
        assert proposal.std is not None
        assert episodes.trace is not None
        with single_precision():
            trace = jax.tree.map(lambda x: jnp.asarray(x)[: self.population], episodes.trace)
            lam, batch, seen, worth = self._judge(state, trace, each)
            theta, critics, optimizer = self._improve(state, batch, proposal.std[0], proposal.memo)
            moved = PPOState(theta, critics, seen, worth, optimizer, belief, each, state.generation + 1)
            return moved, Weighing(lam, c_sat)

    def deployed(self, state: PPOState) -> Array:
        """The policy, which acts without noise."""
        return state.theta

    def _judge(self, state: PPOState, trace: Trace, each: Array) -> tuple[Array, Batch, Spread, Spread]:
        """λ and how good each step was: better or worse than the critics had expected, of return and of costs."""
        steps = trace.alive.shape[1]
        time = jnp.broadcast_to(jnp.arange(steps) / steps, trace.alive.shape)[..., None]
        raw = jnp.concatenate([trace.obs, time], axis=-1)
        seen = _followed(state.seen, raw, trace.alive, state.generation)
        x = jnp.clip(_standard(seen, raw), -5.0, 5.0)  # [B, n, I]

        costs = step_costs(self.means, trace)
        gained = jnp.concatenate([self.sign * trace.reward[..., None], costs], axis=-1)  # [B, n, 1 + K]
        value = state.worth.mean + jnp.sqrt(state.worth.variance) * _expect(state.critics, x)
        discount = self.discount or min(max(1.0 - 2.5 / steps, 0.95), 0.99)
        advantage = advantages(gained, value, trace.alive, discount=discount, smoothing=self.smoothing)
        target = advantage + value
        worth = _followed(state.worth, target, trace.alive, state.generation)

        mean, variance = _moments(advantage, trace.alive)
        scaled = _standard(Spread(mean, variance), advantage).reshape(-1, advantage.shape[-1]).T  # [1 + K, N]
        # Where nobody paid a cost, all that is left of its advantage is what its critic got wrong.
        paid = jnp.any(costs != 0, axis=(0, 1))
        lam, score = blend(each, scaled[0], jnp.where(paid[:, None], scaled[1:], 0.0))
        scores = jax.vmap(jax.vmap(lambda o: self.network.scores(state.theta, o)))(trace.obs)
        batch = Batch(
            trace.obs, x, scores, trace.disturbance, score.reshape(trace.alive.shape), _standard(worth, target),
            trace.alive,
        )  # fmt: skip
        return lam, jax.tree.map(lambda y: y.reshape(-1, *y.shape[2:]), batch), seen, worth

    def _improve(self, state: PPOState, batch: Batch, std: Array, key: Array) -> tuple[Array, Any, Any]:
        """Policy, critics and optimizer after some epochs of minibatches."""
        transform, size = self._transform(), max(1, len(batch.alive) // self.minibatches)

        def step(now: Any, rows: Array) -> tuple[Any, None]:
            parameters, optimizer = now
            part = jax.tree.map(lambda x: x[rows], batch)
            slope = jax.grad(self._loss)(parameters, part, std)
            change, optimizer = transform.update(slope, optimizer)
            return (optax.apply_updates(parameters, change), optimizer), None

        def shuffled(key: Array) -> Array:
            order = jax.random.permutation(key, len(batch.alive))
            return order[: size * self.minibatches].reshape(-1, size)

        rows = jax.vmap(shuffled)(jax.random.split(key, self.epochs)).reshape(-1, size)
        start = (state.theta, state.critics), state.optimizer
        ((theta, critics), optimizer), _ = jax.lax.scan(step, start, rows)
        return theta, critics, optimizer

    def _loss(self, parameters: tuple[Array, Any], batch: Batch, std: Array) -> Array:
        """The clipped objective of PPO and the squared error of the critics, over steps that were taken."""
        theta, critics = parameters
        scores = jax.vmap(lambda o: self.network.scores(theta, o))(batch.obs)
        # Both Gaussians have the same spread, so the densities differ by their exponents only.
        moved = batch.disturbance + batch.scores - scores
        odds = jnp.exp(jnp.sum((batch.disturbance**2 - moved**2) / (2.0 * std**2), axis=-1))
        clipped = jnp.clip(odds, 1.0 - self.clip, 1.0 + self.clip)
        gain = jnp.minimum(odds * batch.advantage, clipped * batch.advantage)
        error = jnp.sum((_expect(critics, batch.seen) - batch.target) ** 2, axis=-1)
        # Where scores are far out noise no longer changes the action, and nothing can be learned any more.
        far = jnp.sum(jnp.maximum(jnp.abs(scores) - self.reach, 0.0) ** 2, axis=-1)
        return jnp.sum((0.5 * error + far - gain) * batch.alive) / jnp.maximum(jnp.sum(batch.alive), 1.0)

    def _transform(self) -> optax.GradientTransformation:
        steps = self.generations * self.epochs * self.minibatches
        return optax.adam(optax.cosine_decay_schedule(self.alpha, steps))


def advantages(gained: Array, value: Array, alive: Array, *, discount: float, smoothing: float) -> Array:
    """Generalized advantage estimates `[B, n, C]` of what was gained and expected `[B, n, C]` at steps alive `[B, n]`.

    An episode ends with nothing to expect: at its own end, or at the horizon.
    """
    follows = jnp.concatenate([alive[:, 1:], jnp.zeros_like(alive[:, :1])], axis=1)[..., None]
    later = jnp.concatenate([value[:, 1:], jnp.zeros_like(value[:, :1])], axis=1)
    surprise = (gained + discount * follows * later - value) * alive[..., None]

    def back(advantage: Array, surprise: Array) -> tuple[Array, Array]:
        advantage = surprise + discount * smoothing * advantage  # nothing surprises after the end
        return advantage, advantage

    by_time = jnp.moveaxis(surprise, 1, 0)
    _, found = jax.lax.scan(back, jnp.zeros_like(by_time[0]), by_time, reverse=True)
    return jnp.moveaxis(found, 0, 1)


# ---- critics --------------------------------------------------------------------------------------------------


def _critics(count: int, inputs: int, hidden: int) -> dict[str, Array]:
    """Weights of networks with two layers of tanh. They are random, the same in every run, and expect 0 at first."""
    rng = np.random.default_rng(0)
    first = rng.normal(size=(count, inputs, hidden)) / np.sqrt(inputs)
    second = rng.normal(size=(count, hidden, hidden)) / np.sqrt(hidden)
    return {
        "w1": jnp.asarray(first, jnp.float32),
        "b1": jnp.zeros((count, hidden), jnp.float32),
        "w2": jnp.asarray(second, jnp.float32),
        "b2": jnp.zeros((count, hidden), jnp.float32),
        "w3": jnp.zeros((count, hidden), jnp.float32),
        "b3": jnp.zeros(count, jnp.float32),
    }


def _expect(critics: dict[str, Array], x: Array) -> Array:
    """What each critic expects, `[..., C]`, seeing `[..., I]`."""

    def one(c: dict[str, Array]) -> Array:
        hidden = jnp.tanh(jnp.tanh(x @ c["w1"] + c["b1"]) @ c["w2"] + c["b2"])
        return hidden @ c["w3"] + c["b3"]

    return jax.vmap(one, out_axes=-1)(critics)


# ---- means and spreads ----------------------------------------------------------------------------------------


def _unknown(columns: int) -> Spread:
    return Spread(jnp.zeros(columns, jnp.float32), jnp.ones(columns, jnp.float32))


def _moments(x: Array, alive: Array) -> tuple[Array, Array]:
    """Mean and variance `[C]` of columns `[B, n, C]` over the steps that were taken."""
    weight = (alive / jnp.maximum(jnp.sum(alive), 1.0))[..., None]
    mean = jnp.sum(weight * x, axis=(0, 1))
    return mean, jnp.sum(weight * (x - mean) ** 2, axis=(0, 1))


def _followed(spread: Spread, x: Array, alive: Array, generation: Array) -> Spread:
    """The spread after another generation; the first one counts in full."""
    part = 1.0 / jnp.minimum(generation + 1.0, RECENT)
    mean, variance = _moments(x, alive)
    return Spread(
        spread.mean + part * (mean - spread.mean), spread.variance + part * (variance - spread.variance)
    )


def _standard(spread: Spread, x: Array) -> Array:
    """Zero mean and unit spread; what has no spread becomes 0."""
    std = jnp.sqrt(spread.variance)
    return jnp.where(std > 1e-8, (x - spread.mean) / jnp.where(std > 1e-8, std, 1.0), 0.0)
