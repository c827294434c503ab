"""Proximal policy optimization with one advantage of the return and one of each cost, combined by λ.

An actor-critic learns from every step of its episodes, an evolution strategy from their totals. Besides the policy it
has:

- exploration: Gaussian noise on the scores of the policy network. The deployed policy is the one without noise.
  `distributions` has the likelihood of actions;
- critics of the return and of each cost. Beside the observation they see the requirement's counters, and the time if
  the end of an episode matters. If it does not, because later rewards are discounted to almost nothing, they value an
  episode that reaches the horizon as one that continues;
- the cost of each step (`BatchMonitor.step_costs`, `step_shaping_costs`), so that costs are attributed to the actions
  before them.

A policy with a memory learns from sequences of steps, with truncated backpropagation through time. Critics also see
its memory, since an observation alone does not determine the value of a state then.

Policy and critics share the convolutions of a policy that observes images, and both learn them.

With several agents, the critics see the observations of all of them, and each agent acts on its own (MAPPO: Yu et al.
2022).

As in safe-es, each generation also plays a few episodes without noise; they alone feed the belief and λ.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array

from psyco._src.core.options import NumberRange, option
from psyco._src.envs.actions import Actions
from psyco._src.learners.actor_critic import (
    ActorCritic,
    Critics,
    default_discount,
    discount_option,
    discounted_sums,
    make_critics,
    state_values,
)
from psyco._src.learners.base import Proposal, UpdateInfo, cosine, count_steps, zero_counters
from psyco._src.learners.belief import Belief, single_precision
from psyco._src.learners.distributions import action_of, log_likelihood, offered_scores
from psyco._src.learners.expectation_constraints import learning_step_costs
from psyco._src.learners.lagrangian import (
    FAR_FROM_MET,
    ConstraintHistory,
    add_proportional_and_floor,
    by_cost,
    combine_advantages,
    default_gain,
    empty_history,
    target_shortfall,
)
from psyco._src.policies.image_network import ImageNetwork
from psyco._src.policies.joint_network import JointNetwork
from psyco._src.rollout.episodes import Episodes, Trace

STATS_WINDOW = 20  # generations over which means and variances are averaged
MIN_STEPS = 8000  # of a generation of full-length episodes, by default; but never more than 20 episodes
MINIBATCH_STEPS = 512
REFERENCE_UPDATES = 22_000  # of a run for which the rate 0.001 is right: Particle Dance with 60,000 episodes
NEGLIGIBLE_DISCOUNT = 0.01
MAX_GRADIENT_NORM = 1.0
SEQUENCE_STEPS = 64  # of truncated backpropagation through time, by default
ENCODED_ROWS = 512  # images that are encoded at a time
MAX_CRITIC_INPUT = 5.0  # standard deviations at which inputs of critics are clipped


class ColumnStats(NamedTuple):
    """Mean and variance of some columns over recent generations."""

    mean: Array
    variance: Array


class PPOState(NamedTuple):
    """The policy, its critics, and the belief about it."""

    theta: Array  # [D]
    critics: Critics  # 1 + K networks, of the return and of each cost
    input_stats: ColumnStats  # [I] of the critics' inputs
    target_stats: ColumnStats  # [1 + K] of the critics' targets
    advantage_variance: Array  # [1 + K] over recent generations
    optimizer: Any  # state of optax
    held: Array  # [] share of exploring episodes with held noise
    belief: Belief
    lam: Array  # [K] λ_k
    history: ConstraintHistory
    generation: Array  # [] int32
    steps: Array  # [] int32, taken so far


class Batch(NamedTuple):
    """N steps to learn from; with a memory N sequences of L steps, whose arrays have a further axis `[N, L, ...]`."""

    obs: Array  # [N, inputs]
    critic_input: Array  # [N, I]; with images the critics also see these, encoded
    action: Array  # [N, outputs], see `distributions`
    likelihood: Array  # [N] log-likelihood under the policy that played; of several agents [N, A]
    advantage: Array  # [N]
    target: Array  # [N, 1 + K] of the critics, normalized
    alive: Array  # [N] 1: the step was taken, 0: padding after the end of the episode
    memory: Array | None = None  # [N, memory_size] at the start of each sequence, of the policy that played


@dataclass(frozen=True, kw_only=True)
class PPO(ActorCritic):
    """Proximal policy optimization, an on-policy actor-critic."""

    population: int = option(
        None,
        "Exploring episodes per generation. Default: for about 1500 generations of at least 8000 steps or 20 episodes.",
        kind=int,
        minimum=1,
        search=NumberRange(4, 80, log=True),
    )
    learning_rate: float = option(
        None,
        "Initial learning rate of Adam, with cosine decay. Default: 0.001 for 22,000 updates, more for fewer.",
        kind=float,
        above=0.0,
        search=NumberRange(0.0001, 0.01, log=True),
    )
    epochs: int = option(
        None, "Epochs per generation. Default: from 4 to 10.", kind=int, minimum=1, search=NumberRange(3, 15)
    )
    minibatches: int = option(
        None, "Minibatches per epoch, at full length. Default: of 512 steps each.", kind=int, minimum=1
    )
    clip: float = option(0.2, "Clipping range of the probability ratio.", above=0.0, search=NumberRange(0.1, 0.4))
    discount: float = discount_option()
    gae_lambda: float = option(
        0.95, "λ of generalized advantage estimation.", minimum=0.0, maximum=1.0, search=NumberRange(0.8, 1.0)
    )
    std: float = option(
        0.5, "Initial std of the noise on the scores.", above=0.0, search=NumberRange(0.2, 1.0, log=True)
    )
    std_end: float = option(
        0.3, "Final std; it falls geometrically.", above=0.0, search=NumberRange(0.05, 0.5, log=True)
    )
    infeasible_std: float = option(
        0.3, "Final std, if larger, while recent checks reach half of a target or less.", above=0.0
    )
    score_limit: float = option(1.5, "Absolute score from which a penalty pulls scores back.", above=0.0)
    sequence_length: int = option(
        None,
        "Steps of truncated backpropagation through time, of policies with a memory. Default: up to 64.",
        kind=int,
        minimum=1,
    )
    critic_hidden: int = option(
        None, "Hidden units in both layers of each critic. Default: as the policy.", kind=int, minimum=1
    )

    learns_memory: ClassVar[bool] = True
    learns_images: ClassVar[bool] = True
    learns_independently: ClassVar[bool] = True

    @classmethod
    def gymnasium_options(cls, actions: Actions, horizon: int, return_constrained: bool) -> dict[str, Any]:
        """Return the default options on a Gymnasium environment."""
        options = super().gymnasium_options(actions, horizon, return_constrained)
        if not actions.ranked:
            # Near a bound, a policy that is learned with much noise keeps further away from it than the noiseless
            # policy must. Discrete actions need the noise, since little noise hardly ever changes a choice.
            options["std_end"] = 0.1
        if return_constrained:  # a constraint on the return weighs late rewards as much as early ones
            options["discount"] = max(0.95, 1.0 - 1.0 / horizon)
        return options

    def _resolve_auto(self) -> None:
        horizon, budget = self.horizon, self.known_task.episode_budget
        smallest = min(max(-(-MIN_STEPS // horizon), 4), 20)
        self._set_auto(population=self.limited(min(max(budget // 1500, smallest), 200)))
        self._set_auto(checks=max(2, self.population // 10), critic_hidden=max(self.network.layers))
        self._set_auto(minibatches=max(1, round(self.population * horizon / MINIBATCH_STEPS)))
        # Few generations need more epochs, and few updates a larger rate.
        self._set_auto(epochs=round(min(max(4 * (1000 / max(self.generations, 1)), 4), 10)))
        updates = self.generations * self.epochs * self.minibatches
        self._set_auto(learning_rate=0.001 * min(max((REFERENCE_UPDATES / updates) ** 0.5, 0.3), 3.0))
        self._set_auto(discount=default_discount(horizon), gain=default_gain(self.generations))
        if self.network.recurrent:
            self._set_auto(sequence_length=min(horizon, SEQUENCE_STEPS))
        _ = self.actions

    @property
    def updates_per_step(self) -> float:
        """Gradient steps per step of an episode."""
        return self.epochs * self.minibatches / (self.episodes_per_generation * self.horizon)

    @property
    def bootstraps_at_horizon(self) -> bool:
        """Whether an episode that reaches the horizon is valued as one that continues."""
        return self.discount**self.horizon < NEGLIGIBLE_DISCOUNT

    def init(self, theta: Array) -> PPOState:
        """Start from the given policy, with critics that predict 0 and λ = 1."""
        theta = jnp.asarray(theta, jnp.float32)
        count = 1 + len(self.known_task.cost_owners)
        inputs = self.known_task.counters + (not self.bootstraps_at_horizon) + self.network.memory_size
        critics = make_critics(count, inputs + self.network.head.inputs, self.critic_hidden, gain=1.0)
        inputs += 0 if self._has_images else self.network.inputs
        optimizer = self._transform().init((theta, critics))
        return PPOState(
            theta, critics, _unit_stats(inputs), _unit_stats(count), jnp.zeros(count, jnp.float32), optimizer,
            self.initial_held(), *self.controller.init(), empty_history(self.known_task), *zero_counters(),
        )  # fmt: skip

    def propose(self, key: Array, state: PPOState) -> Proposal:
        """Return exploring episodes, then the checks; all have the same parameters."""
        std = jnp.broadcast_to(self._noise(state), (self.network.outputs,)).astype(jnp.float32)
        return self._episodes(key, state.theta, std, state.held)

    def _noise(self, state: PPOState) -> Array:
        """Return the standard deviation of the noise on the scores.

        With little noise a policy can come close to a bound. Far beyond a bound, little noise changes nothing about the
        violations, and no way back is found.
        """
        shortfall = jnp.max(target_shortfall(self, state), initial=0.0)
        factor = max(self.infeasible_std / self.std_end, 1.0)
        end = self.std_end * factor ** jnp.minimum(shortfall / (1.0 - FAR_FROM_MET), 1.0)
        return self.std * (end / self.std) ** self.progress(state)

    def update(self, state: PPOState, proposal: Proposal, episodes: Episodes) -> tuple[PPOState, UpdateInfo]:
        """Update belief and λ by the checks, then policy and critics by the exploring episodes."""
        belief, c_sat, lam_k = self.update_lambda(state, episodes)
        controlled = add_proportional_and_floor(self, state, episodes, lam_k)
        assert proposal.std is not None
        assert episodes.trace is not None
        with single_precision():
            trace = jax.tree.map(lambda x: jnp.asarray(x)[: self.population], episodes.trace)
            std = proposal.std[0]
            held, is_best = self.updated_held(state.held, proposal, episodes, controlled.applied, state.belief.recent)
            if proposal.hold is not None:
                # Held noise is not drawn as the likelihood says, so these episodes count only if they are the best.
                counts = (proposal.hold[: self.population] == 1) | is_best
                trace = trace._replace(alive=trace.alive * counts[:, None])
            judged = self._evaluate(state, trace, controlled.applied, std)
            theta, critics, optimizer = self._improve(state, judged, std, proposal.memo)
            moved = PPOState(
                theta, critics, judged.input_stats, judged.target_stats, judged.advantage_variance, optimizer,
                held, belief, controlled.lam, controlled.history,
                state.generation + 1, state.steps + count_steps(episodes),
            )  # fmt: skip
            return moved, UpdateInfo(judged.lam, c_sat)

    def deployed(self, state: PPOState) -> Array:
        """Return the policy, which acts without noise."""
        return state.theta

    @property
    def _has_images(self) -> bool:
        return isinstance(self.network, ImageNetwork)

    def _encode_states(self, theta: Array, trace: Trace) -> Array:
        """Return encoded observations `[B, n + 1, features]` of all states, the one after the last step included."""
        obs = jnp.concatenate([trace.obs, trace.final_obs[:, None]], axis=1)
        if not self._has_images:
            return obs
        rows = obs.reshape(-1, obs.shape[-1])
        encoded = jax.lax.map(lambda x: self.network.encode(theta, x), rows, batch_size=min(ENCODED_ROWS, len(rows)))
        return encoded.reshape(*obs.shape[:-1], -1)

    def _seen_by_critics(self, encoded: Array, x: Array) -> Array:
        """Return the inputs of critics: encoded images and other inputs."""
        return jnp.concatenate([encoded, x], axis=-1) if self._has_images else x

    def _scores(self, theta: Array, encoded: Array) -> Array:
        """Return the policy's scores `[N, outputs]` for encoded observations `[N, features]`."""
        parameters = self.network.head_parameters(theta)
        return jax.vmap(lambda x: self.network.head.scores(parameters, x))(encoded)

    def _recall(self, theta: Array, encoded: Array, memory: Array) -> tuple[Array, Array]:
        """Return scores and memories along sequences.

        Args:
            theta: parameters `[D]`.
            encoded: observations `[N, L, features]`.
            memory: before the first of them, `[N, memory_size]`.

        Returns:
            Scores `[N, L, outputs]`, and the memories `[N, L, memory_size]` from which they are computed.
        """
        head = self.network.head
        layers = head.unflatten(self.network.head_parameters(theta))

        def step(memory: Array, x: Array) -> tuple[Array, tuple[Array, Array]]:
            scores, after = jax.vmap(lambda x, m: head.scores_and_memory(layers, x, m))(x, memory)
            return after, (scores, after)

        _, by_time = jax.lax.scan(step, memory, jnp.moveaxis(encoded, 1, 0))
        scores, memories = (jnp.moveaxis(x, 0, 1) for x in by_time)
        return scores, memories

    def _sequences(self, x: Array) -> Array:
        """Return columns `[B, n, ...]` as sequences `[N, L, ...]`; the last one of an episode is filled up with 0."""
        length = self.sequence_length
        x = jnp.pad(x, ((0, 0), (0, -x.shape[1] % length), *[(0, 0)] * (x.ndim - 2)))
        return x.reshape(-1, length, *x.shape[2:])

    def _likelihood(self, scores: Array, std: Array, action: Array) -> Array:
        """Return the log-likelihood of actions `[N, outputs]`, `[N]`; of several agents that of each, `[N, A]`."""
        if not isinstance(self.network, JointNetwork):
            return log_likelihood(self.actions, scores, std, action)
        parts = zip(self.network.members, self.network.output_places, strict=True)
        own = [log_likelihood(each.actions, scores[:, at], std[at], action[:, at]) for each, at in parts]
        return jnp.stack(own, axis=1)

    def _evaluate(self, state: PPOState, trace: Trace, lam_k: Array, std: Array) -> _EvaluatedEpisodes:
        """Return λ, and each step with its advantage and its targets for the critics."""
        memories, scores = None, None
        encoded = self._encode_states(state.theta, trace)
        if self.network.recurrent:
            start = jnp.zeros((len(encoded), self.network.memory_size), jnp.float32)
            scores, memories = self._recall(state.theta, encoded, start)
        raw = self._critic_inputs(trace, encoded, memories)  # [B, n + 1, I]
        input_stats = _updated_stats(state.input_stats, raw[:, :-1], trace.alive, state.generation)
        x = jnp.clip(_normalized(input_stats, raw), -MAX_CRITIC_INPUT, MAX_CRITIC_INPUT)

        costs = learning_step_costs(self.known_task.expectations, trace, state.belief.recent)
        gained = jnp.concatenate([self.known_task.sign * trace.reward[..., None], costs], axis=-1)  # [B, n, 1 + K]
        stats = state.target_stats
        seen = self._seen_by_critics(encoded, x)
        value = stats.mean + jnp.sqrt(stats.variance) * state_values(state.critics, seen)  # [B, n + 1, 1 + K]
        continues = (1.0 - trace.terminated) * self.bootstraps_at_horizon
        advantage = advantages(
            gained, value, trace.alive, continues, discount=self.discount, gae_lambda=self.gae_lambda
        )
        target = advantage + value[:, :-1]
        target_stats = _updated_stats(stats, target, trace.alive, state.generation)

        mean, variance = _moments(advantage, trace.alive)
        recent = state.advantage_variance
        recent = jnp.maximum(variance, recent + (variance - recent) / STATS_WINDOW)
        # Advantages of costs that have become small stay small: their unit is the larger recent variance.
        unit = recent.at[0].set(variance[0])
        scaled = _normalized(ColumnStats(mean, unit), advantage)
        scaled = scaled.reshape(-1, advantage.shape[-1]).T  # [1 + K, N]
        # If all episodes have the same cost, the advantage is nothing but the error of the critic.
        episode_cost = costs.sum(axis=1)  # [B, K]
        informative = jnp.any(costs != 0, axis=(0, 1)) & (jnp.ptp(episode_cost, axis=0) > 0)
        cost_advantage = jnp.where(informative[:, None], scaled[1:], 0.0)
        lam, score = combine_advantages(by_cost(self.known_task, lam_k), scaled[0], cost_advantage)
        if memories is not None and scores is not None:
            return _EvaluatedEpisodes(
                lam,
                self._sequence_batch(
                    trace, x, memories, scores[:, :-1], std, score.reshape(trace.alive.shape),
                    _normalized(target_stats, target),
                ),
                input_stats, target_stats, recent,
            )  # fmt: skip
        obs, noise = (y.reshape(-1, y.shape[-1]) for y in (trace.obs, trace.noise))
        scores = self._scores(state.theta, encoded[:, :-1].reshape(-1, encoded.shape[-1]))
        action = action_of(self.actions, scores + noise)
        batch = Batch(
            obs,
            x[:, :-1].reshape(len(obs), x.shape[-1]),  # of images perhaps no column
            action,
            self._likelihood(scores, std, action),
            score,
            _normalized(target_stats, target).reshape(-1, target.shape[-1]),
            trace.alive.reshape(-1),
        )
        return _EvaluatedEpisodes(lam, batch, input_stats, target_stats, recent)

    def _sequence_batch(
        self, trace: Trace, x: Array, memories: Array, scores: Array, std: Array, advantage: Array, target: Array
    ) -> Batch:
        """Return the steps of episodes as sequences, each with the memory at its start."""
        action = action_of(self.actions, scores + trace.noise)
        likelihood = self._likelihood(scores, std, action)
        before = jnp.concatenate([jnp.zeros_like(memories[:, :1]), memories[:, :-2]], axis=1)  # [B, n, memory_size]
        columns = trace.obs, x[:, :-1], action, likelihood, advantage, target, trace.alive
        return Batch(*map(self._sequences, columns))._replace(memory=self._sequences(before)[:, 0])

    def _critic_inputs(self, trace: Trace, obs: Array, memories: Array | None) -> Array:
        """Return the critics' inputs but images, in each state: `[B, n + 1, I]`, for observations `[B, n + 1, D]`."""
        steps = trace.alive.shape[1]
        columns = [obs[..., :0] if self._has_images else obs]
        if not self.bootstraps_at_horizon:
            time = jnp.broadcast_to(jnp.arange(steps + 1) / steps, (len(trace.alive), steps + 1))
            columns.append(time[..., None])
        if trace.counters is not None:
            columns.append(trace.counters)
        if memories is not None:
            columns.append(memories)
        return jnp.concatenate(columns, axis=-1)

    def _improve(self, state: PPOState, judged: _EvaluatedEpisodes, std: Array, key: Array) -> tuple[Array, Any, Any]:
        """Return policy, critics and optimizer after some epochs of minibatches of steps that were taken."""
        batch, transform = judged.batch, self._transform()
        taken = batch.alive if batch.memory is None else batch.alive.max(axis=1)  # [N]
        size = -(-len(taken) // self.minibatches)
        parts = jnp.ceil(jnp.sum(taken) / size).astype(jnp.int32)
        rate = self.learning_rate * cosine(self.progress(state), 1.0)
        whole = size * self.minibatches

        def step(number: Array, now: Any) -> Any:
            parameters, optimizer, order = now
            rows = jax.lax.dynamic_slice_in_dim(order, number * size, size)
            part = jax.tree.map(lambda x: x.at[rows].get(mode="fill", fill_value=0), batch)
            gradient = jax.grad(self._loss)(parameters, part, std)
            change, optimizer = transform.update(gradient, optimizer)
            change = jax.tree.map(lambda x: -rate * x, change)
            return optax.apply_updates(parameters, change), optimizer, order

        def epoch(number: Array, now: Any) -> Any:
            # Steps that were taken come first, in random order; rows that fill up a minibatch have no weight.
            random = jax.random.uniform(jax.random.fold_in(key, number), taken.shape)
            order = jnp.argsort(jnp.where(taken > 0, random, 2.0))
            order = jnp.pad(order, (0, whole - len(order)), constant_values=len(order))
            return jax.lax.fori_loop(0, parts, step, (*now, order))[:2]

        critics = _rescaled(state.critics, state.target_stats, judged.target_stats)
        start = (state.theta, critics), state.optimizer
        (theta, critics), optimizer = jax.lax.fori_loop(0, self.epochs, epoch, start)
        return theta, critics, optimizer

    def _loss(self, parameters: tuple[Array, Any], batch: Batch, std: Array) -> Array:
        """Return the clipped objective of PPO plus the squared error of the critics, over steps that were taken."""
        theta, critics = parameters
        encoded = self.network.encode(theta, batch.obs)
        if batch.memory is None:
            scores = self._scores(theta, encoded)
        else:
            scores, _ = self._recall(theta, encoded, batch.memory)
        ratio = jnp.exp(self._likelihood(scores, std, batch.action) - batch.likelihood)
        clipped = jnp.clip(ratio, 1.0 - self.clip, 1.0 + self.clip)
        if isinstance(self.network, JointNetwork):
            # The advantage is that of the team, and each agent's ratio is clipped by itself.
            advantage = batch.advantage[:, None]
            gain = jnp.sum(jnp.minimum(ratio * advantage, clipped * advantage), axis=-1)
        else:
            gain = jnp.minimum(ratio * batch.advantage, clipped * batch.advantage)
        seen = self._seen_by_critics(encoded, batch.critic_input)
        error = jnp.sum((state_values(critics, seen) - batch.target) ** 2, axis=-1)
        # Noise on very large scores does not change the action, so nothing could be learned there.
        own = offered_scores(self.network, scores)
        beyond = jnp.sum(jnp.maximum(jnp.abs(own) - self.score_limit, 0.0) ** 2, axis=-1)
        return jnp.sum((0.5 * error + beyond - gain) * batch.alive) / jnp.maximum(jnp.sum(batch.alive), 1.0)

    def _transform(self) -> optax.GradientTransformation:
        """Return the transformation that gives directions; the rate follows the schedule."""
        return optax.chain(optax.clip_by_global_norm(MAX_GRADIENT_NORM), optax.scale_by_adam())


class _EvaluatedEpisodes(NamedTuple):
    """The steps of a generation with advantages and targets, and the statistics after it."""

    lam: Array  # [] weight of the return
    batch: Batch
    input_stats: ColumnStats
    target_stats: ColumnStats
    advantage_variance: Array


def advantages(
    gained: Array, value: Array, alive: Array, continues: Array, *, discount: float, gae_lambda: float
) -> Array:
    """Return generalized advantage estimates `[B, n, C]`.

    Args:
        gained: reward or cost of each step, `[B, n, C]`.
        value: predicted in each state, the one after the last step of the horizon included, `[B, n + 1, C]`; after an
            episode's end, that of its last state.
        alive: 1 for every step that was taken, `[B, n]`.
        continues: 1 where an episode would have continued after its last step, 0 where it terminated, `[B]`.
        discount: per step.
        gae_lambda: λ of the estimate.
    """
    follows = jnp.concatenate([alive[:, 1:], jnp.zeros_like(alive[:, :1])], axis=1)
    counts = jnp.where(follows > 0, 1.0, continues[:, None])[..., None]
    error = (gained + discount * counts * value[:, 1:] - value[:, :-1]) * alive[..., None]
    return discounted_sums(error, discount * gae_lambda)  # errors are 0 after the end


def _rescaled(critics: Critics, old: ColumnStats, new: ColumnStats) -> Critics:
    """Return critics with the same predictions in the units of new target statistics (van Hasselt et al. 2016)."""
    before, after = jnp.sqrt(old.variance), jnp.sqrt(jnp.maximum(new.variance, 1e-12))
    scale, shift = before / after, (old.mean - new.mean) / after
    return {**critics, "w3": critics["w3"] * scale[:, None], "b3": critics["b3"] * scale + shift}


def _unit_stats(columns: int) -> ColumnStats:
    return ColumnStats(jnp.zeros(columns, jnp.float32), jnp.ones(columns, jnp.float32))


def _moments(x: Array, alive: Array) -> tuple[Array, Array]:
    """Return mean and variance `[C]` of columns `[B, n, C]` over the steps that were taken."""
    weight = (alive / jnp.maximum(jnp.sum(alive), 1.0))[..., None]
    mean = jnp.sum(weight * x, axis=(0, 1))
    return mean, jnp.sum(weight * (x - mean) ** 2, axis=(0, 1))


def _updated_stats(stats: ColumnStats, x: Array, alive: Array, generation: Array) -> ColumnStats:
    """Return the statistics after another generation; the first one counts in full."""
    part = 1.0 / jnp.minimum(generation + 1.0, STATS_WINDOW)
    mean, variance = _moments(x, alive)
    return ColumnStats(stats.mean + part * (mean - stats.mean), stats.variance + part * (variance - stats.variance))


def _normalized(stats: ColumnStats, x: Array) -> Array:
    """Return columns with zero mean and unit variance; constant columns become 0."""
    std = jnp.sqrt(stats.variance)
    return jnp.where(std > 1e-8, (x - stats.mean) / jnp.where(std > 1e-8, std, 1.0), 0.0)
