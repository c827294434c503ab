"""Proximal policy optimization with several advantages: one of the return, one of each cost, weighed by the Bayesian λ.

An actor-critic sees every step of its episodes, where an evolution strategy sees their sums. It needs:

- exploration: Gaussian noise on the scores of the policy network, before they become an action. Without noise the
  policy is the one that is deployed. How likely an action was is found in `odds`;
- critics: networks that expect what is still to come of return and of each cost. They belong to the learner, not to
  the policy, and see the requirement's counters beside the observation, and the time where the end of an episode
  matters: where it does not, since later rewards hardly count, they expect that an episode would have gone on;
- the steps at which a cost arises (`Monitor.blame`, `Monitor.grade`), so that it is held against what led to it.

As in safe-es, each generation also plays a few episodes without noise; they alone feed the belief and λ.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from psyco._src.core.errors import RunError
from psyco._src.envs.actions import Actions
from psyco._src.learners.base import Proposal, UpdateInfo
from psyco._src.learners.belief import Belief, single_precision
from psyco._src.learners.expectation_constraints import ExpectationBound, step_costs
from psyco._src.learners.lagrangian import FAR, ConstraintHistory, LagrangianLearner, blend, default_gain
from psyco._src.learners.odds import done, log_likelihood
from psyco._src.learners.schedules import cosine, nothing_spent, steps_of
from psyco._src.learners.search_space import STEERED, NumberRange, Ranges
from psyco._src.policies.network import Network
from psyco._src.rollout.episodes import Episodes, Trace

RECENT = 20  # generations over which means and spreads are taken
STEPS = 8000  # at least so many a generation, if all episodes were of full length, but never more than 20 episodes
MINIBATCH = 512  # steps
UPDATES = 22_000  # of a run for which a rate of 0.001 is right; Particle Dance's with 60,000 episodes
NEGLIGIBLE = 0.01  # what is discounted to less than that does not matter
STEEPEST = 1.0  # norm of a gradient; longer ones are cut


class ColumnStats(NamedTuple):
    """Mean and variance of some columns over recent generations."""

    mean: Array
    variance: Array


class PPOState(NamedTuple):
    """The policy, its critics, and what is believed about it."""

    theta: Array  # [D]
    critics: dict[str, Array]  # weights of 1 + K networks, of the return and of each cost
    seen: ColumnStats  # [I] of what the critics see
    worth: ColumnStats  # [1 + K] of what they expect
    missed: Array  # [1 + K] variance of what they got wrong, over recent generations
    optimizer: Any  # of optax
    belief: Belief
    lam: Array  # [K]
    course: ConstraintHistory
    generation: Array  # [] int32
    steps: Array  # [] int32, of all episodes so far


class Batch(NamedTuple):
    """N steps to learn from."""

    obs: Array  # [N, inputs]
    seen: Array  # [N, I] what critics see
    action: Array  # [N, outputs] what was done, see `odds`
    likelihood: Array  # [N] its logarithm, under the policy that played
    advantage: Array  # [N]
    target: Array  # [N, 1 + K] what the critics should have said
    alive: Array  # [N] 1 for steps that were taken


@dataclass(frozen=True)
class PPO(LagrangianLearner):
    """An actor-critic. The options that it shares with `SafeES` mean the same.

    Args:
        p_req: required probability of each demand for one.
        c_req: required confidence of each demand, of probabilities first.
        network: of the policy.
        actions: what it chooses from.
        horizon: steps of an episode, at most.
        counters: how many the requirement has, see `Monitor.counters`.
        means: the demands for means.
        budget: training episodes of the whole run; rate, noise and demand follow schedules over them.
        steps: of the whole run, where they are its budget; 0: the episodes are.
        population: exploring episodes per generation; 0: what gives about 1500 generations, but at most 200, and at
            least 8000 steps or 20 episodes.
        checks: episodes without noise in each generation, which feed belief and λ; 0: a tenth of the population.
        alpha: learning rate of Adam at the beginning, which falls to 0 along a cosine; 0: by the number of updates,
            0.001 for 22,000 and more for fewer.
        epochs: how often each step is learned from; 0: from 4 for a thousand generations to 10 for a hundred.
        minibatches: into how many parts each epoch is cut, if all episodes have full length; 0: parts of 512 steps.
        clip: how far the odds of an action may move in one generation before it no longer counts.
        discount: of later rewards and costs; 0: from 0.95 for horizons up to 50 to 0.99 for those from 250 on.
        smoothing: λ of generalized advantage estimation, 0 trusts the critics, 1 the episodes.
        std: standard deviation of the noise on the scores at the beginning,
        std_end: and at the end of learning; in between it falls geometrically,
        std_missed: but no further than to this, if that is more, while recent checks met half of a demanded
            probability or less.
        reach: scores beyond this size are drawn back.
        critic: hidden units in both layers of each critic; 0: as many as the widest layer of the policy has.
        margin: aim above the requirement, by this part of what is left up to 1.
        curriculum: the demand rises from nothing to its full size over this part of learning.
        gain: how fast λ moves per generation; 0: by 0.01, and faster where there are few generations.
        memory: how many generations the belief remembers.
        relief: how much faster λ rises while all episodes meet the demand, as a part of `gain`; while less than half
            as many do as should, it does not fall as long as costs do. 0: neither.
        press: how much lower λ is felt in learning for what is missing to the demand now; 0: not at all.
        least: λ falls no lower than this where episodes end before the horizon, so that the return keeps a say.
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
    alpha: float = 0.0
    epochs: int = 0
    minibatches: int = 0
    clip: float = 0.2
    discount: float = 0.0
    smoothing: float = 0.95
    std: float = 0.5
    std_end: float = 0.3
    std_missed: float = 0.3
    reach: float = 1.5
    critic: int = 0
    margin: float = 0.3
    curriculum: float = 0.5
    gain: float = 0.0
    memory: float = 100.0
    relief: float = 0.0
    press: float = 0.0
    least: float = 0.0
    sign: float = 1.0

    ranges: ClassVar[Ranges] = {
        "population": NumberRange(4, 80, log=True),
        "alpha": NumberRange(0.0001, 0.01, log=True),
        "epochs": NumberRange(3, 15),
        "clip": NumberRange(0.1, 0.4),
        "discount": NumberRange(0.9, 0.995),
        "smoothing": NumberRange(0.8, 1.0),
        "std": NumberRange(0.2, 1.0, log=True),
        "std_end": NumberRange(0.05, 0.5, log=True),
        **STEERED,
    }

    def __post_init__(self) -> None:
        if self.population == 0:
            least = min(max(-(-STEPS // self.horizon), 4), 20)
            object.__setattr__(self, "population", min(max(self.budget // 1500, least), 200))
        if self.checks == 0:
            object.__setattr__(self, "checks", max(2, self.population // 10))
        if self.critic == 0:
            object.__setattr__(self, "critic", max(self.network.layers))
        self._check_whole("population", "checks", "critic")
        steps = self.population * self.horizon
        object.__setattr__(self, "minibatches", self.minibatches or max(1, round(steps / MINIBATCH)))
        self._check_whole("minibatches")
        # Few generations must make more of each, and few updates must go further.
        few = 1000 / max(self.generations, 1)
        object.__setattr__(self, "epochs", self.epochs or round(min(max(4 * few, 4), 10)))
        self._check_whole("epochs")
        updates = self.generations * self.epochs * self.minibatches
        object.__setattr__(
            self, "alpha", self.alpha or 0.001 * min(max((UPDATES / updates) ** 0.5, 0.3), 3.0)
        )
        for name in ("alpha", "clip", "std", "std_end", "std_missed", "reach"):
            if not getattr(self, name) > 0:
                raise RunError(f"{name} must be positive, got {getattr(self, name)}")
        for name in ("discount", "smoothing"):
            if not 0 <= getattr(self, name) <= 1:
                raise RunError(f"{name} must be from 0 to 1, got {getattr(self, name)}")
        discount = self.discount or min(max(1.0 - 2.5 / self.horizon, 0.95), 0.99)
        object.__setattr__(self, "discount", discount)
        object.__setattr__(self, "gain", self.gain or default_gain(self.generations))
        _ = self.steering  # checks the options that are its own

    def _check_whole(self, *names: str) -> None:
        for name in names:
            if getattr(self, name) < 1:
                raise RunError(f"{name} must be at least 1, got {getattr(self, name)}")

    @property
    def updates(self) -> float:
        """Gradient steps per step of an episode."""
        return self.epochs * self.minibatches / (self.episodes_per_generation * self.horizon)

    @property
    def goes_on(self) -> bool:
        """Is an episode that time ends taken for one that would go on? Else its end is a part of the task."""
        return self.discount**self.horizon < NEGLIGIBLE

    def init(self, theta: Array) -> PPOState:
        """The policy as it is given, critics that expect nothing, all weight on return."""
        theta = jnp.asarray(theta, jnp.float32)
        inputs, count = self.network.inputs + self.counters + (not self.goes_on), 1 + len(self.c_req)
        critics = _critics(count, inputs, self.critic)
        seen, worth = _unknown(inputs), _unknown(count)
        optimizer = self._transform().init((theta, critics))
        missed = jnp.zeros(count, jnp.float32)
        return PPOState(
            theta, critics, seen, worth, missed, optimizer, *self.steering.init(),
            self.begin(), *nothing_spent(),
        )  # fmt: skip

    def propose(self, key: Array, state: PPOState) -> Proposal:
        """Episodes that explore, then some that do not; all with the same parameters."""
        std = self._noise(state)
        explores = jnp.arange(self.episodes_per_generation) < self.population
        rows = jnp.where(explores, std, 0.0).astype(jnp.float32)
        return Proposal(
            jnp.broadcast_to(state.theta, (len(rows), state.theta.size)),
            key,
            std=jnp.broadcast_to(rows[:, None], (len(rows), self.network.outputs)),
        )

    def _noise(self, state: PPOState) -> Array:
        """Standard deviation of the noise on the scores now.

        Little noise lets a policy come close to a bound. Where one is far beyond it, little noise changes nothing about
        what is violated, and nobody learns how to come back.
        """
        lacking = jnp.max(self.lacking(state.course, self.done(state)), initial=0.0)
        louder = max(self.std_missed / self.std_end, 1.0)
        end = self.std_end * louder ** jnp.minimum(lacking / (1.0 - FAR), 1.0)
        return self.std * (end / self.std) ** self.part(state)

    def update(self, state: PPOState, proposal: Proposal, episodes: Episodes) -> tuple[PPOState, UpdateInfo]:
        """Believe what the policy showed without noise, judge the steps of the others, and learn from them."""
        belief, c_sat, each = self.steer(state, episodes)
        course, each, felt = self.relieve(state, episodes, each)
        assert proposal.std is not None
        assert episodes.trace is not None
        with single_precision():
            trace = jax.tree.map(lambda x: jnp.asarray(x)[: self.population], episodes.trace)
            std = proposal.std[0]
            judged = self._judge(state, trace, felt, std)
            theta, critics, optimizer = self._improve(state, judged, std, proposal.memo)
            spent = state.generation + 1, state.steps + steps_of(episodes)
            moved = PPOState(
                theta,
                critics,
                judged.seen,
                judged.worth,
                judged.missed,
                optimizer,
                belief,
                each,
                course,
                *spent,
            )
            return moved, UpdateInfo(judged.lam, c_sat)

    def deployed(self, state: PPOState) -> Array:
        """The policy, which acts without noise."""
        return state.theta

    def _scores(self, theta: Array, obs: Array) -> Array:
        """Scores `[N, outputs]` of the policy for observations `[N, inputs]`."""
        return jax.vmap(lambda o: self.network.scores(theta, o))(obs)

    def _judge(self, state: PPOState, trace: Trace, each: Array, std: Array) -> _JudgedEpisodes:
        """λ, and how good each step was, of return and costs, by what the critics expected."""
        raw = self._visible(trace)  # [B, n + 1, I]
        seen = _followed(state.seen, raw[:, :-1], trace.alive, state.generation)
        x = jnp.clip(_standard(seen, raw), -5.0, 5.0)

        costs = step_costs(self.means, trace)
        gained = jnp.concatenate([self.sign * trace.reward[..., None], costs], axis=-1)  # [B, n, 1 + K]
        value = state.worth.mean + jnp.sqrt(state.worth.variance) * _expect(
            state.critics, x
        )  # [B, n + 1, 1 + K]
        after = (1.0 - trace.terminated) * self.goes_on
        advantage = advantages(
            gained, value, trace.alive, after, discount=self.discount, smoothing=self.smoothing
        )
        target = advantage + value[:, :-1]
        worth = _followed(state.worth, target, trace.alive, state.generation)

        mean, variance = _moments(advantage, trace.alive)
        missed = jnp.maximum(variance, state.missed + (variance - state.missed) / RECENT)
        # Costs that have become small have become unimportant, and are not blown up to the size that they once had.
        unit = missed.at[0].set(variance[0])
        scaled = (
            _standard(ColumnStats(mean, unit), advantage).reshape(-1, advantage.shape[-1]).T
        )  # [1 + K, N]
        # Where all paid the same, or nobody anything, all that is left of an advantage is what its critic got wrong.
        paid = costs.sum(axis=1)  # [B, K]
        tells = jnp.any(costs != 0, axis=(0, 1)) & (jnp.ptp(paid, axis=0) > 0)
        against = jnp.where(tells[:, None], scaled[1:], 0.0)
        lam, score = blend(each, scaled[0], against)
        obs, disturbance = (y.reshape(-1, y.shape[-1]) for y in (trace.obs, trace.disturbance))
        scores = self._scores(state.theta, obs)
        action = done(self.actions, scores + disturbance)
        batch = Batch(
            obs,
            x[:, :-1].reshape(-1, x.shape[-1]),
            action,
            log_likelihood(self.actions, scores, std, action),
            score,
            _standard(worth, target).reshape(-1, target.shape[-1]),
            trace.alive.reshape(-1),
        )
        return _JudgedEpisodes(lam, batch, seen, worth, missed)

    def _visible(self, trace: Trace) -> Array:
        """What critics see in each state, the one after the last step among them: `[B, n + 1, I]`."""
        steps = trace.alive.shape[1]
        columns = [jnp.concatenate([trace.obs, trace.final[:, None]], axis=1)]
        if not self.goes_on:
            time = jnp.broadcast_to(jnp.arange(steps + 1) / steps, (len(trace.alive), steps + 1))
            columns.append(time[..., None])
        if trace.counters is not None:
            columns.append(trace.counters)
        return jnp.concatenate(columns, axis=-1)

    def _improve(
        self, state: PPOState, judged: _JudgedEpisodes, std: Array, key: Array
    ) -> tuple[Array, Any, Any]:
        """Policy, critics and optimizer after some epochs of minibatches of steps that were taken."""
        batch, transform = judged.batch, self._transform()
        size = -(-len(batch.alive) // self.minibatches)
        parts = jnp.ceil(jnp.sum(batch.alive) / size).astype(jnp.int32)
        rate = self.alpha * cosine(self.part(state), 1.0)
        whole = size * self.minibatches

        def step(number: Array, now: Any) -> Any:
            parameters, optimizer, order = now
            rows = jax.lax.dynamic_slice_in_dim(order, number * size, size)
            part = jax.tree.map(lambda x: x.at[rows].get(mode="fill", fill_value=0), batch)
            slope = jax.grad(self._loss)(parameters, part, std)
            change, optimizer = transform.update(slope, optimizer)
            change = jax.tree.map(lambda x: -rate * x, change)
            return optax.apply_updates(parameters, change), optimizer, order

        def epoch(number: Array, now: Any) -> Any:
            # Steps that were taken come first, in random order; what is missing to a whole minibatch counts nothing.
            chance = jax.random.uniform(jax.random.fold_in(key, number), batch.alive.shape)
            order = jnp.argsort(jnp.where(batch.alive > 0, chance, 2.0))
            order = jnp.pad(order, (0, whole - len(order)), constant_values=len(order))
            return jax.lax.fori_loop(0, parts, step, (*now, order))[:2]

        critics = _rescaled(state.critics, state.worth, judged.worth)
        start = (state.theta, critics), state.optimizer
        (theta, critics), optimizer = jax.lax.fori_loop(0, self.epochs, epoch, start)
        return theta, critics, optimizer

    def _loss(self, parameters: tuple[Array, Any], batch: Batch, std: Array) -> Array:
        """The clipped objective of PPO and the squared error of the critics, over steps that were taken."""
        theta, critics = parameters
        scores = self._scores(theta, batch.obs)
        odds = jnp.exp(log_likelihood(self.actions, scores, std, batch.action) - batch.likelihood)
        clipped = jnp.clip(odds, 1.0 - self.clip, 1.0 + self.clip)
        gain = jnp.minimum(odds * batch.advantage, clipped * batch.advantage)
        error = jnp.sum((_expect(critics, batch.seen) - batch.target) ** 2, axis=-1)
        # Where scores are far out noise no longer changes the action, and nothing can be learned any more.
        far = jnp.sum(jnp.maximum(jnp.abs(scores) - self.reach, 0.0) ** 2, axis=-1)
        return jnp.sum((0.5 * error + far - gain) * batch.alive) / jnp.maximum(jnp.sum(batch.alive), 1.0)

    def _transform(self) -> optax.GradientTransformation:
        """Directions; their rate follows the schedule."""
        return optax.chain(optax.clip_by_global_norm(STEEPEST), optax.scale_by_adam())


class _JudgedEpisodes(NamedTuple):
    """What the episodes of a generation were worth."""

    lam: Array  # [] weight of return
    batch: Batch
    seen: ColumnStats
    worth: ColumnStats
    missed: Array


def advantages(
    gained: Array, value: Array, alive: Array, after: Array, *, discount: float, smoothing: float
) -> Array:
    """Generalized advantage estimates `[B, n, C]`.

    Args:
        gained: at each step, `[B, n, C]`.
        value: expected in each state, the one after the last step of the horizon among them, `[B, n + 1, C]`; after an
            episode's end, in its last state.
        alive: 1 for every step that was taken, `[B, n]`.
        after: 1 where an episode would have gone on after its last step, 0 where nothing is left to expect, `[B]`.
        discount: of what comes one step later.
        smoothing: λ of the estimate.
    """
    follows = jnp.concatenate([alive[:, 1:], jnp.zeros_like(alive[:, :1])], axis=1)
    counts = jnp.where(follows > 0, 1.0, after[:, None])[..., None]
    surprise = (gained + discount * counts * value[:, 1:] - value[:, :-1]) * alive[..., None]

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


def _rescaled(critics: dict[str, Array], old: ColumnStats, new: ColumnStats) -> dict[str, Array]:
    """Critics that expect the same as before, told in the units of another spread (van Hasselt et al. 2016)."""
    before, after = jnp.sqrt(old.variance), jnp.sqrt(jnp.maximum(new.variance, 1e-12))
    scale, shift = before / after, (old.mean - new.mean) / after
    return {**critics, "w3": critics["w3"] * scale[:, None], "b3": critics["b3"] * scale + shift}


# ---- means and spreads ----------------------------------------------------------------------------------------


def _unknown(columns: int) -> ColumnStats:
    return ColumnStats(jnp.zeros(columns, jnp.float32), jnp.ones(columns, jnp.float32))


def _moments(x: Array, alive: Array) -> tuple[Array, Array]:
    """Mean and variance `[C]` of columns `[B, n, C]` over the steps that were taken."""
    weight = (alive / jnp.maximum(jnp.sum(alive), 1.0))[..., None]
    mean = jnp.sum(weight * x, axis=(0, 1))
    return mean, jnp.sum(weight * (x - mean) ** 2, axis=(0, 1))


def _followed(spread: ColumnStats, x: Array, alive: Array, generation: Array) -> ColumnStats:
    """The spread after another generation; the first one counts in full."""
    part = 1.0 / jnp.minimum(generation + 1.0, RECENT)
    mean, variance = _moments(x, alive)
    return ColumnStats(
        spread.mean + part * (mean - spread.mean), spread.variance + part * (variance - spread.variance)
    )


def _standard(spread: ColumnStats, x: Array) -> Array:
    """Zero mean and unit spread; what has no spread becomes 0."""
    std = jnp.sqrt(spread.variance)
    return jnp.where(std > 1e-8, (x - spread.mean) / jnp.where(std > 1e-8, std, 1.0), 0.0)
