"""Soft actor-critic with a critic for each cost: learns from every step many times, for simulators that are slow.

An off-policy learner keeps what it has seen (`replay`) and draws from it again and again. It needs:

- exploration: Gaussian noise on the scores of the policy network, as in `ppo`. Its size is learned, so that a wanted
  entropy is kept; of choices the policy's chances are those of its scores as log-odds. Without noise the policy is the
  one that is deployed;
- critics: two of the return, of which the worse is believed, and one of each cost. Those of costs also see the counters
  of the requirement and the time, since a budget that is used up and an end that is near change what is to be paid;
- standard observations: statistics run along with learning and are folded into the policy's first layer (`normal`).

As in safe-es, each generation also plays a few episodes without noise; they alone feed the belief and λ. All episodes
are remembered. They are played by the policy of one update before, so that they can be played during an update.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array

from psyco._src.core.errors import RunError
from psyco._src.envs.actions import Actions
from psyco._src.learners.base import Proposal, UpdateInfo
from psyco._src.learners.belief import Belief, single_precision
from psyco._src.learners.choices import chances, chosen, entropy, largest_entropy
from psyco._src.learners.critics import Critics, expect, make_critics
from psyco._src.learners.expectation_constraints import ExpectationBound, step_costs
from psyco._src.learners.lagrangian import ConstraintHistory, LagrangianLearner, default_gain, shares
from psyco._src.learners.replay_buffer import (
    ReplayBuffer,
    StateRows,
    TransitionBatch,
    draw,
    empty,
    put,
    row_bytes,
)
from psyco._src.learners.running_stats import begin, fold, look, nothing_seen, standard
from psyco._src.learners.schedules import nothing_spent, steps_of
from psyco._src.learners.search_space import STEERED, NumberRange, OptionChoice, Ranges
from psyco._src.policies.network import Network
from psyco._src.rollout.episodes import Episodes, Trace
from psyco._src.rollout.obs_stats import ObsStats

LIMIT = 2**27  # bytes that experience may take
UPDATES = 300_000  # of a run that has steps enough
GUMBEL = (
    1.2825  # noise of this size on scores chooses about as often as their chances say: that of Gumbel's law
)
CLOSE = 10.0  # critics see nothing further away than so many spreads


class BehaviorPolicy(NamedTuple):
    """What plays episodes."""

    theta: Array  # [D] for observations as they are
    std: Array  # [outputs] of the noise


class ActorParameters(NamedTuple):
    """What is learned of the policy."""

    theta: Array  # [D] for standard observations
    log_std: Array  # [outputs]


class TrainedParameters(NamedTuple):
    """All that gradients move."""

    actor: ActorParameters
    critics: Critics  # of the return twice, then of each cost
    targets: Critics  # the same, following slowly
    temperature: Array  # [] log of what entropy is worth
    optimizers: tuple[Any, Any, Any]  # of actor, critics and temperature


class SACState(NamedTuple):
    """The policy, its critics, what they learn from, and what is believed."""

    learned: TrainedParameters
    acting: BehaviorPolicy  # as it was before the last update
    replay: ReplayBuffer
    seen: ObsStats  # [inputs] observations
    worth: ObsStats  # [1 + K] what was still to come of return and costs
    updates: Array  # [] float32, gradient steps made
    belief: Belief
    lam: Array  # [K]
    course: ConstraintHistory
    generation: Array  # [] int32
    steps: Array  # [] int32, taken so far


@dataclass(frozen=True)
class SAC(LagrangianLearner):
    """An off-policy actor-critic. The options that it shares with `SafeES` and `PPO` mean the same.

    Args:
        p_req: required probability of each demand for one.
        c_req: required confidence of each demand, of probabilities first.
        network: of the policy; its biases must be learned.
        actions: what the policy chooses from.
        horizon: steps that an episode has at most.
        counters: how many counters a trace has.
        means: the demands for means.
        budget: training episodes of the whole run.
        steps: of the whole run, where they are its budget; 0: the episodes are.
        population: exploring episodes per generation; 0: what gives about 100 generations, from 2 to 8.
        checks: episodes without noise in each generation, which feed belief and λ; 0: a quarter of the population.
        alpha: learning rate of Adam.
        updates: gradient steps per step of an episode; 0: what gives 300,000 of them, from 0.1 to 2.
        batch: steps that each of them learns from.
        critic: hidden units in both layers of each critic.
        follow: the part by which target networks follow the critics after each update.
        discount: of later rewards and costs; 0: from 0.95 for horizons up to 50 to 0.99 for those from 250 on.
        std: standard deviation of the noise on the scores at the beginning.
        entropy: what exploration aims for, in nats per output in [-1, 1].
        openness: the same for choices, as a part of the largest entropy.
        replay: steps that are remembered; 0: all that there will be, as far as they fit into 128 MB.
        margin: aim above the requirement, by this part of what is left up to 1.
        curriculum: the demand rises from nothing to its full size over this part of learning.
        gain: how fast λ moves per generation; 0: by 0.01, and faster where there are few generations.
        memory: how many generations the belief remembers.
        relief: how much faster λ rises while all episodes meet the demand, as a part of `gain`; while less than half
            as many do as should, it does not fall as long as costs do. 0: neither.
        press: how much lower λ is felt in learning for what is missing to the demand now; 0: not at all.
        sign: 1 to maximise the return, -1 to minimise it.
    """

    p_req: tuple[float, ...]
    c_req: tuple[float, ...]
    network: Network
    actions: Actions
    horizon: int
    counters: int = 0
    means: tuple[ExpectationBound, ...] = ()
    budget: int = 60_000
    steps: int = 0
    population: int = 0
    checks: int = 0
    alpha: float = 1e-3
    updates: float = 0.0
    batch: int = 128
    critic: int = 64
    follow: float = 0.005
    discount: float = 0.0
    std: float = 1.0
    entropy: float = -1.0
    openness: float = 0.2
    replay: int = 0
    margin: float = 0.3
    curriculum: float = 0.5
    gain: float = 0.0
    memory: float = 100.0
    relief: float = 0.0
    press: float = 0.0
    sign: float = 1.0

    ranges: ClassVar[Ranges] = {
        "population": NumberRange(2, 16, log=True),
        "alpha": NumberRange(0.0001, 0.003, log=True),
        "updates": NumberRange(0.1, 2.0, log=True),
        "batch": OptionChoice(64, 128, 256),
        "follow": NumberRange(0.002, 0.02, log=True),
        "discount": NumberRange(0.9, 0.995),
        "entropy": NumberRange(-2.0, -0.25),
        **STEERED,
    }
    standardizes: ClassVar[bool] = True  # by itself, since it draws old observations again

    def __post_init__(self) -> None:
        if self.network.bias != "learned":
            raise RunError("sac needs learned biases in the policy network: --bias learned")
        if self.population == 0:
            object.__setattr__(self, "population", min(max(self.budget // 100, 2), 8))
        if self.checks == 0:
            object.__setattr__(self, "checks", max(1, self.population // 4))
        for name, least in (("population", 1), ("checks", 1), ("batch", 1), ("critic", 1), ("replay", 0)):
            if getattr(self, name) < least:
                raise RunError(f"{name} must be at least {least}, got {getattr(self, name)}")
        most = self.steps or self.budget * self.horizon
        object.__setattr__(self, "updates", self.updates or min(max(UPDATES / most, 0.1), 2.0))
        fits = LIMIT // row_bytes(
            self.network.inputs, self.counters + 1, self.network.outputs, len(self.c_req)
        )
        # A generation must fit: what follows its first step is in it.
        least = self.episodes_per_generation * (self.horizon + 1)
        object.__setattr__(self, "replay", max(self.replay or min(most + self.budget, fits), least))
        for name in ("alpha", "updates", "std"):
            if not getattr(self, name) > 0:
                raise RunError(f"{name} must be positive, got {getattr(self, name)}")
        for name in ("discount", "follow", "openness"):
            if not 0 <= getattr(self, name) <= 1:
                raise RunError(f"{name} must be from 0 to 1, got {getattr(self, name)}")
        object.__setattr__(self, "discount", self.discount or min(max(1.0 - 2.5 / self.horizon, 0.95), 0.99))
        object.__setattr__(self, "gain", self.gain or default_gain(self.generations))
        _ = self.steering  # checks the options that are its own

    def init(self, theta: Array) -> SACState:
        """The policy as it is given, critics that expect nothing, all weight on return."""
        ranked, inputs, outputs = self.actions.ranked, self.network.inputs, self.network.outputs
        sizes = inputs, self.counters + 1, outputs, len(self.c_req)
        actor = ActorParameters(
            jnp.asarray(theta, jnp.float32),
            jnp.full(outputs, jnp.log(GUMBEL if ranked else self.std), jnp.float32),
        )
        # A critic of choices has a value for each switch, and one for the state.
        critics = make_critics(
            2 + len(self.c_req),
            inputs + self.counters + 1 + (0 if ranked else outputs),
            self.critic,
            1 + outputs if ranked else 1,
        )
        temperature = jnp.float32(jnp.log(0.1))
        made = (actor, critics, temperature)
        learned = TrainedParameters(
            actor, critics, critics, temperature, tuple(self._adam().init(each) for each in made)
        )
        seen = begin(self.network)
        return SACState(
            learned, self._acting(actor, seen), empty(self.replay, *sizes), seen,
            nothing_seen(1 + len(self.c_req)), jnp.float32(0), *self.steering.init(),
            self.begin(), *nothing_spent(),
        )  # fmt: skip

    def propose(self, key: Array, state: SACState) -> Proposal:
        """Episodes that explore, then some that do not; all with the policy of one update before."""
        return self._proposal(key, state.acting)

    def propose_ahead(self, key: Array, state: SACState) -> Proposal:
        """What `propose` will give after the next update, whatever that learns."""
        return self._proposal(key, self._acting(state.learned.actor, state.seen))

    def update(self, state: SACState, proposal: Proposal, episodes: Episodes) -> tuple[SACState, UpdateInfo]:
        """Believe what the policy showed without noise, remember all, and learn from what is remembered."""
        belief, c_sat, each = self.steer(state, episodes)
        course, each, felt = self.relieve(state, episodes, each)
        assert episodes.trace is not None
        with single_precision():
            trace = jax.tree.map(jnp.asarray, episodes.trace)
            replay = put(state.replay, *self._rows(proposal.theta[0], trace))
            seen = look(state.seen, trace.obs, trace.alive)
            worth = look(state.worth, self._to_come(trace), trace.alive)
            steps = state.steps + steps_of(episodes)
            due = jnp.maximum(jnp.floor(self.updates * steps) - state.updates, 0.0)
            lam, weight = shares(felt)

            def improve(i: Array, learned: TrainedParameters) -> TrainedParameters:
                return self._improved(
                    jax.random.fold_in(proposal.memo, i), i, learned, replay, seen, worth, lam, weight
                )

            learned = jax.lax.fori_loop(0, due.astype(jnp.int32), improve, state.learned)
            moved = SACState(
                learned, self._acting(state.learned.actor, state.seen), replay, seen, worth,
                state.updates + due, belief, each, course, state.generation + 1, steps,
            )  # fmt: skip
            return moved, UpdateInfo(lam, c_sat)

    def deployed(self, state: SACState) -> Array:
        """The policy, which acts without noise."""
        return fold(self.network, state.learned.actor.theta, state.seen)

    # ---- episodes -------------------------------------------------------------------------------------------------

    def _acting(self, actor: ActorParameters, seen: ObsStats) -> BehaviorPolicy:
        return BehaviorPolicy(fold(self.network, actor.theta, seen), jnp.exp(actor.log_std))

    def _proposal(self, key: Array, acting: BehaviorPolicy) -> Proposal:
        explores = jnp.arange(self.episodes_per_generation) < self.population
        return Proposal(
            jnp.broadcast_to(acting.theta, (len(explores), acting.theta.size)),
            key,
            std=jnp.where(explores[:, None], acting.std, 0.0),
        )

    def _rows(self, theta: Array, trace: Trace) -> tuple[StateRows, Array]:
        """The states of episodes `[B * (n + 1)]` as they are remembered, and which of them are to be."""
        count, steps = trace.alive.shape

        def with_last(column: Array) -> Array:
            """What belongs to steps as a column of states: nothing is done in the last one."""
            return jnp.pad(column, [(0, 0), (0, 1), *[(0, 0)] * (column.ndim - 2)])

        length = jnp.sum(trace.alive, axis=1, keepdims=True)
        time = jnp.broadcast_to(jnp.arange(steps + 1) / steps, (count, steps + 1))
        scores = (
            jax.vmap(jax.vmap(lambda obs: self.network.scores(theta, obs)))(trace.obs) + trace.disturbance
        )
        known = [time[..., None]] if trace.counters is None else [trace.counters, time[..., None]]
        going = with_last((jnp.arange(steps) < length - 1).astype(jnp.float32))
        ends = with_last((jnp.arange(steps) == length - 1) * trace.terminated[:, None])
        rows = StateRows(
            obs=jnp.concatenate([trace.obs, trace.final[:, None]], axis=1),
            known=jnp.concatenate(known, axis=-1),
            action=with_last(chosen(self.actions, scores) if self.actions.ranked else jnp.tanh(scores)),
            reward=with_last(self.sign * trace.reward),
            cost=with_last(step_costs(self.means, trace)),
            taken=with_last(trace.alive),
            going=going,
            open=1.0 - ends,
        )
        inside = jnp.arange(steps + 1) <= length
        return jax.tree.map(lambda x: x.reshape(count * (steps + 1), *x.shape[2:]), (rows, inside))

    def _to_come(self, trace: Trace) -> Array:
        """What was still to come of return and costs at each step, `[B, n, 1 + K]`, discounted."""
        gained = jnp.concatenate([trace.reward[..., None], step_costs(self.means, trace)], axis=-1)

        def back(later: Array, now: Array) -> tuple[Array, Array]:
            later = now + self.discount * later
            return later, later

        by_time = jnp.moveaxis(gained, 1, 0)
        _, found = jax.lax.scan(back, jnp.zeros_like(by_time[0]), by_time, reverse=True)
        return jnp.moveaxis(found, 0, 1)

    # ---- gradients ------------------------------------------------------------------------------------------------

    def _improved(
        self,
        key: Array,
        i: Array,
        learned: TrainedParameters,
        replay: ReplayBuffer,
        seen: ObsStats,
        worth: ObsStats,
        lam: Array,
        weight: Array,
    ) -> TrainedParameters:
        """One gradient step of the critics, and every other time one of the policy."""
        drawn, after, now = jax.random.split(key, 3)
        steps = draw(drawn, replay, self.batch)
        x, later = standard(seen, steps.rows.obs), standard(seen, steps.obs)
        actor, critics, targets, temperature, optimizers = learned
        target = self._target(after, learned, steps, later, _size(worth))

        def error(critics: Critics) -> Array:
            found = self._value(critics, x, steps.rows.known, steps.rows.action)
            return jnp.sum((found - target) ** 2 * steps.rows.taken) / self.batch

        critics, optimizer = self._moved(optimizers[1], critics, jax.grad(error)(critics))
        targets = jax.tree.map(lambda old, new: old + self.follow * (new - old), targets, critics)
        learned = TrainedParameters(
            actor, critics, targets, temperature, (optimizers[0], optimizer, optimizers[2])
        )
        return jax.lax.cond(
            i % 2 == 0,
            lambda learned: self._better(now, learned, x, steps.rows, lam, weight),
            lambda learned: learned,
            learned,
        )

    def _better(
        self, key: Array, learned: TrainedParameters, x: Array, rows: StateRows, lam: Array, weight: Array
    ) -> TrainedParameters:
        """One gradient step of the policy, and of what entropy is worth."""
        price = jnp.exp(learned.temperature)

        def loss(actor: ActorParameters) -> tuple[Array, Array]:
            action, chance = self._act(key, actor, x)
            value = self._value(learned.critics, x, rows.known, action)  # [2 + K, N]
            gain = lam * jnp.minimum(value[0], value[1]) - (1.0 - lam) * (weight @ value[2:])
            each = price * chance - gain
            return jnp.sum(each * rows.taken) / self.batch, jnp.sum(chance * rows.taken) / jnp.sum(rows.taken)

        slope, chance = jax.grad(loss, has_aux=True)(learned.actor)
        actor, first = self._moved(learned.optimizers[0], learned.actor, slope)
        # The price rises while entropy, the mean of -chance, is lower than wanted.
        short = self._wanted + chance
        temperature, third = self._moved(learned.optimizers[2], learned.temperature, -short)
        actor = actor._replace(log_std=jnp.clip(actor.log_std, -4.0, 1.0))
        return TrainedParameters(
            actor, learned.critics, learned.targets, temperature, (first, learned.optimizers[1], third)
        )

    def _target(
        self, key: Array, learned: TrainedParameters, steps: TransitionBatch, later: Array, size: Array
    ) -> Array:
        """What the critics should have said, `[2 + K, N]`, in units of `size` `[1 + K]`."""
        action, chance = self._act(key, learned.actor, later)
        value = self._value(learned.targets, later, steps.known, action)
        ahead = jnp.minimum(value[0], value[1]) - jnp.exp(learned.temperature) * chance
        rows = steps.rows
        # Time that runs out is no end of the return: the policy does not see the time. Costs are of whole episodes.
        gain = rows.reward / size[0] + self.discount * rows.open * ahead
        costs = rows.cost.T / size[1:, None] + self.discount * rows.going * value[2:]
        return jax.lax.stop_gradient(jnp.concatenate([gain[None], gain[None], costs]))

    def _act(self, key: Array, actor: ActorParameters, x: Array) -> tuple[Array, Array]:
        """What the policy does seeing standard observations `[N, inputs]`, as critics take it, and log-chances `[N]`.

        Of choices that is how likely each is, and the negative entropy.
        """
        scores = _scores(self.network, actor.theta, x)
        if self.actions.ranked:
            return chances(self.actions, scores), -entropy(self.actions, scores)
        noise = jax.random.normal(key, scores.shape)
        tried = scores + jnp.exp(actor.log_std) * noise
        # log(1 - tanh²) = 2 (log 2 - u - softplus(-2 u)), without a logarithm of 0.
        bent = 2.0 * (jnp.log(2.0) - tried - jax.nn.softplus(-2.0 * tried))
        normal = -0.5 * noise**2 - actor.log_std - 0.5 * jnp.log(2.0 * jnp.pi)
        return jnp.tanh(tried), jnp.sum(normal - bent, axis=-1)

    def _value(self, critics: Critics, x: Array, known: Array, action: Array) -> Array:
        """What the critics `[2 + K]` expect of actions `[N, outputs]`, `[2 + K, N]`; of chances, in the mean."""
        near = jnp.clip(x, -CLOSE, CLOSE)
        action_seen = [] if self.actions.ranked else [action]
        # The return goes on as ever whatever the requirement counts.
        blind = jnp.concatenate([near, jnp.zeros_like(known), *action_seen], axis=-1)
        aware = jnp.concatenate([near, jnp.clip(known, -3.0, 3.0), *action_seen], axis=-1)
        found = expect(critics, [blind, blind, *[aware] * len(self.c_req)])
        if not self.actions.ranked:
            return found[..., 0]
        return found[..., 0] + jnp.sum(found[..., 1:] * action, axis=-1)

    @property
    def _wanted(self) -> float:
        """The entropy that exploration aims for."""
        if self.actions.ranked:
            return self.openness * largest_entropy(self.actions)
        return self.entropy * self.network.outputs

    def _moved(self, optimizer: Any, parameters: Any, slope: Any) -> tuple[Any, Any]:
        change, optimizer = self._adam().update(slope, optimizer)
        return optax.apply_updates(parameters, change), optimizer

    def _adam(self) -> optax.GradientTransformation:
        return optax.adam(self.alpha)


def _scores(network: Network, theta: Array, x: Array) -> Array:
    """Scores `[N, outputs]` for standard observations `[N, inputs]`."""
    *hidden, (last, offset) = network.products(theta)
    for weight, bias in hidden:
        x = jax.nn.relu(x @ weight + bias)
    return x @ last + offset


def _size(worth: ObsStats) -> Array:
    """The unit of what critics expect, `[1 + K]`: the spread of the return to come, the size of costs to come."""
    square = worth.variance + jnp.where(jnp.arange(len(worth.mean)) == 0, 0.0, worth.mean**2)
    return jnp.where(square > 1e-12, jnp.sqrt(square), 1.0)
