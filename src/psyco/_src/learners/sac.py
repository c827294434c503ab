"""Soft actor-critic with a critic of each cost: it learns from every step many times, for slow simulators.

An off-policy learner keeps experience (`replay_buffer`) and samples from it repeatedly. Besides the policy it has:

- exploration: Gaussian noise on the scores of the policy network, as in `ppo`. Its size is learned, so that the entropy
  stays near a target; for discrete actions the scores are logits. The deployed policy is the one without noise;
- critics: two of the return, of which the smaller counts, and one of each cost. The latter also see the counters of the
  requirement and the time, because a used-up budget and a near end change the remaining cost;
- normalized observations: running statistics are folded into the policy's first layer (`running_stats`).

As in safe-es, each generation also plays a few episodes without noise; they alone feed the belief and λ. All episodes
go into the buffer. They are played by the policy of one update before, so that they can be played during an update.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array

from psyco._src.core.errors import RunError
from psyco._src.core.options import NumberRange, OptionChoice, option
from psyco._src.learners.actor_critic import (
    ActorCritic,
    Critics,
    action_values,
    default_discount,
    discount_option,
    discounted_sums,
    make_critics,
)
from psyco._src.learners.base import Proposal, UpdateInfo, count_steps, zero_counters
from psyco._src.learners.belief import Belief, single_precision
from psyco._src.learners.distributions import action_of, entropy, max_entropy, probabilities
from psyco._src.learners.expectation_constraints import learning_step_costs
from psyco._src.learners.lagrangian import (
    ConstraintHistory,
    add_proportional_and_floor,
    by_cost,
    default_gain,
    empty_history,
    split_weights,
)
from psyco._src.learners.replay_buffer import (
    ReplayBuffer,
    StateRows,
    Transitions,
    empty_buffer,
    put,
    row_bytes,
    sample,
)
from psyco._src.learners.running_stats import empty_stats, fold, network_stats, normalize_obs, observe_rows
from psyco._src.policies.network import NOT_OFFERED, Network
from psyco._src.rollout.episodes import Episodes, ObsStats, Trace

MAX_BUFFER_BYTES = 2**27
DEFAULT_UPDATES = 300_000  # gradient steps of a run that has enough steps
GUMBEL_NOISE = 1.2825  # standard deviation of Gumbel noise: with it, actions are about as frequent as softmax says
MAX_CRITIC_INPUT = 10.0  # standard deviations at which observations are clipped for critics
LOG_STD_RANGE = (-4.0, 1.0)


class BehaviorPolicy(NamedTuple):
    """The policy that plays episodes."""

    theta: Array  # [D] for raw observations
    std: Array  # [outputs] of the noise
    held: Array  # [] share of exploring episodes that hold it


class ActorParameters(NamedTuple):
    """The trained parameters of the policy."""

    theta: Array  # [D] for normalized observations
    log_std: Array  # [outputs]


class TrainedParameters(NamedTuple):
    """Everything that gradients change."""

    actor: ActorParameters
    critics: Critics  # two of the return, then one of each cost
    targets: Critics  # the target networks
    temperature: Array  # [] log of the entropy coefficient
    optimizers: tuple[Any, Any, Any]  # of actor, critics and temperature


class SACState(NamedTuple):
    """The policy, its critics, the experience, and the belief."""

    learned: TrainedParameters
    behavior: BehaviorPolicy  # of before the last update
    replay: ReplayBuffer
    obs_stats: ObsStats  # [inputs]
    value_stats: ObsStats  # [1 + K] of discounted returns and costs to go
    updates: Array  # [] float32, gradient steps made
    held: Array  # [] share of exploring episodes with held noise
    belief: Belief
    lam: Array  # [K] λ_k
    history: ConstraintHistory
    generation: Array  # [] int32
    steps: Array  # [] int32, taken so far


@dataclass(frozen=True, kw_only=True)
class SAC(ActorCritic):
    """Soft actor-critic, an off-policy learner for slow simulators."""

    population: int = option(
        None,
        "Exploring episodes per generation. Default: from 2 to 8, for about 100 generations.",
        kind=int,
        minimum=1,
        search=NumberRange(2, 16, log=True),
    )
    checks: int = option(
        None, "Episodes without noise per generation. Default: a quarter of population.", kind=int, minimum=1
    )
    learning_rate: float = option(
        1e-3, "Learning rate of Adam.", above=0.0, search=NumberRange(0.0001, 0.003, log=True)
    )
    updates_per_step: float = option(
        None,
        "Gradient steps per step of an episode. Default: from 0.1 to 2, for 300,000 gradient steps in all.",
        kind=float,
        above=0.0,
        search=NumberRange(0.1, 2.0, log=True),
    )
    batch_size: int = option(128, "Steps per gradient step.", minimum=1, search=OptionChoice(64, 128, 256))
    critic_hidden: int = option(64, "Hidden units in both layers of each critic.", minimum=1)
    tau: float = option(
        0.005,
        "Soft update rate of the target networks.",
        minimum=0.0,
        maximum=1.0,
        search=NumberRange(0.002, 0.02, log=True),
    )
    discount: float = discount_option()
    std: float = option(1.0, "Initial std of the noise on the scores.", above=0.0)
    target_entropy: float = option(
        -1.0, "Target entropy of continuous actions, in nats per output.", search=NumberRange(-2.0, -0.25)
    )
    target_entropy_ratio: float = option(
        0.2, "Target entropy of discrete actions, relative to the largest.", minimum=0.0, maximum=1.0
    )
    buffer_size: int = option(None, "Steps in the replay buffer. Default: all, up to 128 MB.", kind=int, minimum=1)

    needs_learned_bias: ClassVar[bool] = True
    # Observations in the buffer are normalized again with later statistics.
    normalizes_observations: ClassVar[bool] = True
    several_agents: ClassVar[bool] = False

    def _resolve_auto(self) -> None:
        task, network, horizon = self.known_task, self.network, self.horizon
        if network.bias != "learned":
            raise RunError("sac needs learned biases in the policy network: --bias learned")
        budget = task.episode_budget
        self._set_auto(population=min(max(budget // 100, 2), 8))
        self._set_auto(checks=max(1, self.population // 4))
        steps = task.step_budget or budget * horizon
        self._set_auto(updates_per_step=min(max(DEFAULT_UPDATES / steps, 0.1), 2.0))
        fits = MAX_BUFFER_BYTES // row_bytes(
            network.inputs, task.counters + 1, self.actions.outputs, len(task.cost_owners)
        )
        self._set_auto(buffer_size=min(steps + budget, fits))
        # A generation must fit: the state after its first step is in it.
        generation = self.episodes_per_generation * (horizon + 1)
        object.__setattr__(self, "buffer_size", max(self.buffer_size, generation))
        self._set_auto(discount=default_discount(horizon), gain=default_gain(self.generations))

    def init(self, theta: Array) -> SACState:
        """Start from the given policy, with critics that predict 0 and λ = 1."""
        ranked, inputs, outputs = self.actions.ranked, self.network.inputs, self.network.outputs
        counters, costs = self.known_task.counters, len(self.known_task.cost_owners)
        actor = ActorParameters(
            jnp.asarray(theta, jnp.float32),
            jnp.full(outputs, jnp.log(GUMBEL_NOISE if ranked else self.std), jnp.float32),
        )
        # A critic of discrete actions has an output for each alternative, and one for the state.
        critics = make_critics(
            2 + costs,
            inputs + counters + 1 + (0 if ranked else outputs),
            self.critic_hidden,
            (1 + outputs if ranked else 1,),
            gain=2.0,
        )
        temperature = jnp.float32(jnp.log(0.1))
        trained = (actor, critics, temperature)
        learned = TrainedParameters(
            actor, critics, critics, temperature, tuple(self._adam().init(part) for part in trained)
        )
        # It learns from any actions, so at first all exploring episodes hold their noise: they reach furthest.
        obs_stats, held = network_stats(self.network), jnp.float32(1.0)
        return SACState(
            learned, self._behavior(actor, obs_stats, held),
            empty_buffer(self.buffer_size, inputs, counters + 1, outputs, costs), obs_stats,
            empty_stats(1 + costs), jnp.float32(0), held, *self.controller.init(),
            empty_history(self.known_task), *zero_counters(),
        )  # fmt: skip

    def propose(self, key: Array, state: SACState) -> Proposal:
        """Return exploring episodes, then the checks; all are played by the policy of one update before."""
        return self._episodes(key, *state.behavior, least=self.std)

    def propose_ahead(self, key: Array, state: SACState) -> Proposal:
        """Return the value of `propose` after the next update, whatever that learns."""
        behavior = self._behavior(state.learned.actor, state.obs_stats, state.held)
        return self._episodes(key, *behavior, least=self.std)

    def update(self, state: SACState, proposal: Proposal, episodes: Episodes) -> tuple[SACState, UpdateInfo]:
        """Update belief and λ by the checks, add all episodes to the buffer, and learn from samples of it."""
        belief, c_sat, lam_k = self.update_lambda(state, episodes)
        controlled = add_proportional_and_floor(self, state, episodes, lam_k)
        assert episodes.trace is not None
        with single_precision():
            trace = jax.tree.map(jnp.asarray, episodes.trace)
            recent = state.belief.recent
            replay = put(state.replay, *self._rows(proposal.theta[0], trace, recent))
            obs_stats = observe_rows(state.obs_stats, trace.obs, trace.alive)
            value_stats = observe_rows(state.value_stats, self._to_go(trace, recent), trace.alive)
            steps = state.steps + count_steps(episodes)
            due = jnp.maximum(jnp.floor(self.updates_per_step * steps) - state.updates, 0.0)
            lam, weight = split_weights(by_cost(self.known_task, controlled.applied))
            held, _ = self.updated_held(state.held, proposal, episodes, controlled.applied, recent)

            def step(i: Array, learned: TrainedParameters) -> TrainedParameters:
                key = jax.random.fold_in(proposal.memo, i)
                return self._gradient_step(key, i, learned, replay, obs_stats, value_stats, lam, weight)

            learned = jax.lax.fori_loop(0, due.astype(jnp.int32), step, state.learned)
            moved = SACState(
                learned, self._behavior(state.learned.actor, state.obs_stats, state.held), replay, obs_stats,
                value_stats, state.updates + due, held, belief, controlled.lam, controlled.history,
                state.generation + 1, steps,
            )  # fmt: skip
            return moved, UpdateInfo(lam, c_sat)

    def deployed(self, state: SACState) -> Array:
        """Return the policy, which acts without noise."""
        return fold(self.network, state.learned.actor.theta, state.obs_stats)

    # ---- episodes -------------------------------------------------------------------------------------------------

    def _behavior(self, actor: ActorParameters, obs_stats: ObsStats, held: Array) -> BehaviorPolicy:
        return BehaviorPolicy(fold(self.network, actor.theta, obs_stats), jnp.exp(actor.log_std), held)

    def _rows(self, theta: Array, trace: Trace, recent: Array | None = None) -> tuple[StateRows, Array]:
        """Return the states of episodes as rows of the buffer `[B * (n + 1)]`, and which of them to keep."""
        count, steps = trace.alive.shape

        def with_last(column: Array) -> Array:
            """Return a column of steps as a column of states; it is 0 in the last one."""
            return jnp.pad(column, [(0, 0), (0, 1), *[(0, 0)] * (column.ndim - 2)])

        length = jnp.sum(trace.alive, axis=1, keepdims=True)
        time = jnp.broadcast_to(jnp.arange(steps + 1) / steps, (count, steps + 1))
        scores = jax.vmap(jax.vmap(lambda obs: self.network.scores(theta, obs)))(trace.obs) + trace.noise
        context = [time[..., None]] if trace.counters is None else [trace.counters, time[..., None]]
        ends = with_last((jnp.arange(steps) == length - 1) * trace.terminated[:, None])
        rows = StateRows(
            obs=jnp.concatenate([trace.obs, trace.final_obs[:, None]], axis=1),
            context=jnp.concatenate(context, axis=-1),
            action=with_last(action_of(self.actions, scores) if self.actions.ranked else jnp.tanh(scores)),
            reward=with_last(self.known_task.sign * trace.reward),
            cost=with_last(learning_step_costs(self.known_task.expectations, trace, recent)),
            taken=with_last(trace.alive),
            not_ended=with_last((jnp.arange(steps) < length - 1).astype(jnp.float32)),
            not_terminated=1.0 - ends,
        )
        inside = jnp.arange(steps + 1) <= length
        return jax.tree.map(lambda x: x.reshape(count * (steps + 1), *x.shape[2:]), (rows, inside))

    def _to_go(self, trace: Trace, recent: Array | None = None) -> Array:
        """Return the discounted return and costs to go at each step, `[B, n, 1 + K]`."""
        costs = learning_step_costs(self.known_task.expectations, trace, recent)
        return discounted_sums(jnp.concatenate([trace.reward[..., None], costs], axis=-1), self.discount)

    # ---- gradients ------------------------------------------------------------------------------------------------

    def _gradient_step(
        self,
        key: Array,
        i: Array,
        learned: TrainedParameters,
        replay: ReplayBuffer,
        obs_stats: ObsStats,
        value_stats: ObsStats,
        lam: Array,
        weight: Array,
    ) -> TrainedParameters:
        """Return the parameters after one gradient step of the critics and, every other time, of the policy."""
        sample_key, target_key, actor_key = jax.random.split(key, 3)
        steps = sample(sample_key, replay, self.batch_size)
        x, next_x = normalize_obs(obs_stats, steps.rows.obs), normalize_obs(obs_stats, steps.next_obs)
        actor, critics, targets, temperature, optimizers = learned
        target = self._target(target_key, learned, steps, next_x, _value_scale(value_stats))

        def error(critics: Critics) -> Array:
            value = self._value(critics, x, steps.rows.context, steps.rows.action)
            return jnp.sum((value - target) ** 2 * steps.rows.taken) / self.batch_size

        critics, optimizer = self._apply(optimizers[1], critics, jax.grad(error)(critics))
        targets = jax.tree.map(lambda old, new: old + self.tau * (new - old), targets, critics)
        learned = TrainedParameters(actor, critics, targets, temperature, (optimizers[0], optimizer, optimizers[2]))
        return jax.lax.cond(
            i % 2 == 0,
            lambda learned: self._actor_step(actor_key, learned, x, steps.rows, lam, weight),
            lambda learned: learned,
            learned,
        )

    def _actor_step(
        self, key: Array, learned: TrainedParameters, x: Array, rows: StateRows, lam: Array, weight: Array
    ) -> TrainedParameters:
        """Return the parameters after one gradient step of the policy and of the entropy coefficient."""
        coefficient = jnp.exp(learned.temperature)

        def loss(actor: ActorParameters) -> tuple[Array, Array]:
            action, log_prob = self._act(key, actor, x)
            value = self._value(learned.critics, x, rows.context, action)  # [2 + K, N]
            gain = lam * jnp.minimum(value[0], value[1]) - (1.0 - lam) * (weight @ value[2:])
            mean_log_prob = jnp.sum(log_prob * rows.taken) / jnp.sum(rows.taken)
            return jnp.sum((coefficient * log_prob - gain) * rows.taken) / self.batch_size, mean_log_prob

        gradient, log_prob = jax.grad(loss, has_aux=True)(learned.actor)
        actor, first = self._apply(learned.optimizers[0], learned.actor, gradient)
        # The coefficient rises while the entropy, the mean of -log_prob, is below its target.
        missing = self._target_entropy(x, rows.taken) + log_prob
        temperature, third = self._apply(learned.optimizers[2], learned.temperature, -missing)
        actor = actor._replace(log_std=jnp.clip(actor.log_std, *LOG_STD_RANGE))
        return TrainedParameters(
            actor, learned.critics, learned.targets, temperature, (first, learned.optimizers[1], third)
        )

    def _target(self, key: Array, learned: TrainedParameters, steps: Transitions, next_x: Array, scale: Array) -> Array:
        """Return the targets of the critics, `[2 + K, N]`, in units of `scale` `[1 + K]`."""
        action, log_prob = self._act(key, learned.actor, next_x)
        value = self._value(learned.targets, next_x, steps.next_context, action)
        ahead = jnp.minimum(value[0], value[1]) - jnp.exp(learned.temperature) * log_prob
        rows = steps.rows
        # The return continues beyond the horizon, since the policy does not see the time; costs end with the episode.
        gain = rows.reward / scale[0] + self.discount * rows.not_terminated * ahead
        costs = rows.cost.T / scale[1:, None] + self.discount * rows.not_ended * value[2:]
        return jax.lax.stop_gradient(jnp.concatenate([gain[None], gain[None], costs]))

    def _act(self, key: Array, actor: ActorParameters, x: Array) -> tuple[Array, Array]:
        """Return the policy's actions for normalized observations `[N, inputs]`, and log-probabilities `[N]`.

        For discrete actions these are the probabilities of the alternatives, and the negative entropy.
        """
        scores = _scores(self.network, actor.theta, x)
        if self.actions.ranked:
            return probabilities(self.actions, scores), -entropy(self.actions, scores)
        noise = jax.random.normal(key, scores.shape)
        noisy = scores + jnp.exp(actor.log_std) * noise
        # log(1 - tanh²) = 2 (log 2 - u - softplus(-2 u)), without a logarithm of 0.
        squash = 2.0 * (jnp.log(2.0) - noisy - jax.nn.softplus(-2.0 * noisy))
        normal = -0.5 * noise**2 - actor.log_std - 0.5 * jnp.log(2.0 * jnp.pi)
        return jnp.tanh(noisy), jnp.sum(normal - squash, axis=-1)

    def _value(self, critics: Critics, x: Array, context: Array, action: Array) -> Array:
        """Return the critics' predictions `[2 + K, N]` for actions `[N, outputs]`; for probabilities, the mean."""
        clipped = jnp.clip(x, -MAX_CRITIC_INPUT, MAX_CRITIC_INPUT)
        action_input = [] if self.actions.ranked else [action]
        # The return does not depend on the counters of the requirement.
        of_return = jnp.concatenate([clipped, jnp.zeros_like(context), *action_input], axis=-1)
        of_cost = jnp.concatenate([clipped, jnp.clip(context, -3.0, 3.0), *action_input], axis=-1)
        values = action_values(critics, [of_return, of_return, *[of_cost] * len(self.known_task.cost_owners)])
        if not self.actions.ranked:
            return values[..., 0]
        return values[..., 0] + jnp.sum(values[..., 1:] * action, axis=-1)

    def _target_entropy(self, x: Array, taken: Array) -> Array | float:
        """Return the entropy that policies should have in states `[N, inputs]`, on average over steps `taken` `[N]`."""
        if self.network.masked:  # a state with a single choice has none
            _, offered = self.network.split_mask(x)
            largest = jnp.log(jnp.maximum(jnp.sum(offered, axis=-1), 1))
            return self.target_entropy_ratio * jnp.sum(largest * taken) / jnp.sum(taken)
        if self.actions.ranked:
            return self.target_entropy_ratio * max_entropy(self.actions)
        return self.target_entropy * self.network.outputs

    def _apply(self, optimizer: Any, parameters: Any, gradient: Any) -> tuple[Any, Any]:
        change, optimizer = self._adam().update(gradient, optimizer)
        return optax.apply_updates(parameters, change), optimizer

    def _adam(self) -> optax.GradientTransformation:
        return optax.adam(self.learning_rate)


def _scores(network: Network, theta: Array, x: Array) -> Array:
    """Return scores `[N, outputs]` for normalized observations `[N, inputs]`."""
    *hidden, (last, offset) = network.weights_and_biases(theta)
    x, offered = network.split_mask(x)
    for weight, bias in hidden:
        x = jax.nn.relu(x @ weight + bias)
    y = x @ last + offset
    return y if offered is None else jnp.where(offered, y, NOT_OFFERED)


def _value_scale(stats: ObsStats) -> Array:
    """Return the units of the critics `[1 + K]`: standard deviation of the return to go, size of costs to go."""
    square = stats.variance + jnp.where(jnp.arange(len(stats.mean)) == 0, 0.0, stats.mean**2)
    return jnp.where(square > 1e-12, jnp.sqrt(square), 1.0)
