"""The bridge to Stable-Baselines3: its algorithms learn under a requirement, and the result gets a certificate.

    bridge = Bridge(psyco.make("CartPole-v1"), "P>=0.95 [ G (abs(obs[0]) <= 1) ] & C>=0.98")
    model = PPO("MlpPolicy", bridge.env())
    model.learn(100_000, callback=bridge.callback())
    print(bridge.certify(model, "cartpole.zip"))

The reward of the environment is `λ reward - (1 - λ) cost`, where the cost of a step is its contribution to the cost of
the requirement's formulas. A top-level `G` of a state formula costs in the step that violates it. The cost of any other
formula, and the excess of a value over its bound, are known and charged at the end of the episode. Under
`Rmin=? [ C ]` the reward changes its sign. The callback regularly plays deterministic episodes, those of the deployed
policy, and moves λ by them: down while the requirement is missed, up while it is exceeded. Nothing of Stable-Baselines3
is changed, so PPO, A2C, SAC, TD3 and DQN all work. A replay buffer keeps some rewards of an earlier λ, so λ should move
slowly. λ lives in one process: use DummyVecEnv, not SubprocVecEnv.

The numbers of episodes are those of `psyco synthesize`: checks take at most a fifth as many steps as learning, `F` of a
return costs in proportion to the missing return, a constraint that all checks violate with equal cost does not silence
the return, and the certificate takes at most a third of the training episodes, or as many as it needs. A bridge keeps a
ledger of its certificates: each takes fresh episodes and a share of one permitted error.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from psyco._src.core.errors import RunError
from psyco._src.core.options import check_declared, option
from psyco._src.envs.base import Domain, signal_table
from psyco._src.envs.gym_env import INFO_PREFIX, GymDomain, Transition, transition_signals
from psyco._src.learners.belief import double_precision
from psyco._src.learners.expectation_constraints import expectation_bounds, learning_costs
from psyco._src.learners.lagrangian import (
    MIN_LAMBDA_WITHOUT_SIGNAL,
    SIGNAL_PATIENCE,
    LambdaController,
    gives_no_signal,
    split_weights,
)
from psyco._src.learners.learner_registry import make_task
from psyco._src.logic.array_eval import EMPTY_PREFIX
from psyco._src.logic.ast import Requirement
from psyco._src.logic.batch_monitor import BatchMonitor, compile_monitor
from psyco._src.logic.parser import parse
from psyco._src.logic.validate import check_bounds, check_signals
from psyco._src.policies.external import as_policy, open_policy
from psyco._src.rollout.episodes import (
    Episodes,
    Stream,
    episode_keys,
    episode_seeds,
    stream_key,
    total_shaping_costs,
)
from psyco._src.runs.budget import DECISION_PROBABILITY, VERIFICATION_SHARE, certificate_length
from psyco._src.verification.certificate import Certificate
from psyco._src.verification.episode_stream import unknown_key_error
from psyco._src.verification.ledger import Ledger
from psyco._src.verification.methods import DEFAULT_MAX_EPISODES, DEFAULT_METHOD
from psyco._src.verification.verifier import check_decidable, verify

GENERATIONS = 1_000_000  # of the controller's schedule: the whole of learning
MIN_STEPS_PER_CHECK_STEP = 5  # training steps for each step of a check


class SharedLambda:
    """λ of all environments of a bridge, moved by the checks with the learners' own controller."""

    def __init__(self, controller: LambdaController) -> None:
        self.controller = controller
        self.belief, lam_k = controller.init()
        self.c_sat = np.zeros(len(lam_k), np.float32)  # [K] confidence that each constraint is satisfied
        self.equal_cost_streak = np.zeros(len(lam_k))  # [K] successive checks that failed it with equal cost
        self.set(lam_k)

    def __getstate__(self) -> None:
        raise RunError("λ lives in this process: use DummyVecEnv, not SubprocVecEnv, with a bridge")

    def set(self, lam_k: Any) -> None:
        """Set λ_k of each constraint `[K]`, and from it λ and the weights of the costs."""
        self.lam_k = jnp.asarray(lam_k, jnp.float32)
        lam, weights = split_weights(self.lam_k)
        self.lam, self.weights = float(lam), np.asarray(weights)

    def observe(self, checks: Episodes, progress: float) -> None:
        """Update belief and λ by episodes of the deployed policy, at this fraction of learning."""
        now = jnp.int32(progress * self.controller.generations)
        with double_precision():
            self.belief, c_sat, lam_k = self.controller.update(self.belief, self.lam_k, now, checks)
        self.c_sat = np.asarray(c_sat)
        cost = learning_costs(self.controller.task.expectations, checks, self.belief.recent)
        self.equal_cost_streak = np.where(gives_no_signal(cost), self.equal_cost_streak + len(cost), 0.0)
        floor = jnp.maximum(lam_k, MIN_LAMBDA_WITHOUT_SIGNAL)
        self.set(jnp.where(self.equal_cost_streak >= SIGNAL_PATIENCE, floor, lam_k))


class ConstrainedEnv(gymnasium.Wrapper):  # type: ignore[type-arg]
    """An environment with reward λ reward - (1 - λ) cost; at the end of an episode `info["psyco"]` has its outcome."""

    def __init__(
        self,
        env: Any,
        domain: GymDomain,
        monitor: BatchMonitor,
        shared: SharedLambda,
        cost_scale: float,
        on_end: Callable[[], None] | None = None,  # called at the end of each episode
    ) -> None:
        super().__init__(env)
        self.domain, self.monitor, self.shared = domain, monitor, shared
        self.task, self.cost_scale, self.on_end = shared.controller.task, cost_scale, on_end
        # Keys of `info` that no episode has had so far.
        self.missing_keys = {name for name in monitor.signals if name.startswith(INFO_PREFIX)}

    def reset(self, **arguments: Any) -> Any:
        """Start an episode and its record."""
        observation, info = self.env.reset(**arguments)
        self._signals: dict[str, NDArray[Any]] = {}  # [n+1, ...] each, filled up to `_length`
        self._length, self._past = 0, EMPTY_PREFIX  # states, and those whose cost is known
        # Copied now: the environment may change its values in place.
        names = self.monitor.signals - {"action"}
        self._first = transition_signals(self.domain, names, Transition(observation, info, None))
        self._return, self._cost = 0.0, np.zeros(len(self.task.c_req))
        return observation, info

    def step(self, action: Any) -> Any:
        """Take a step; the reward is the one to learn from."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        if not self._length:  # the record of the first state contains the first action
            self._record({**self._first, "action": self.domain.action_signal([action])[0]})
        self._return += float(reward)
        transition = Transition(
            observation, info, action, self._length, float(reward), self._return, terminated, truncated
        )
        self._record(transition_signals(self.domain, self.monitor.signals, transition))
        if terminated or truncated:
            if self.on_end is not None:
                self.on_end()
            self.episode = self._evaluate()
            cost = self._episode_cost(self.episode)
            added = cost - self._cost
            satisfied = self.episode.satisfied[0]
            info = {**info, "psyco": {"satisfied": satisfied, "cost": cost, "return": self._return}}
        else:
            added = self._known_cost()
            self._cost += added
        lam = self.shared.lam
        cost_now = float(self.shared.weights @ added)
        reward = lam * self.task.sign * float(reward) - (1.0 - lam) * self.cost_scale * cost_now
        return observation, reward, terminated, truncated, info

    def _record(self, values: dict[str, Any]) -> None:
        """Append the signals of a state."""
        self.missing_keys -= {name for name, value in values.items() if value is not None}
        for name in self.monitor.signals:
            # As in verification, a missing value is 0 or false.
            shape = self.monitor.used_shape(name)
            value = np.asarray(np.zeros(shape, bool) if values[name] is None else values[name])
            self.monitor.check_shape(name, value.shape)
            value = value[: shape[0]] if shape else value
            if name not in self._signals:
                self._signals[name] = np.zeros((self.domain.horizon + 1, *value.shape), value.dtype)
            kind = np.result_type(self._signals[name], value)  # 0 may be followed by 0.5
            self._signals[name] = self._signals[name].astype(kind, copy=False)
            self._signals[name][self._length] = value
        self._length += 1

    def _known_cost(self) -> NDArray[np.float64]:
        """Return the cost `[K]` of the newest states, as far as it does not depend on later ones."""
        new = slice(self._past.states, self._length)
        signals = {name: array[new] for name, array in self._signals.items()}
        end = np.zeros(new.stop - new.start, bool)
        known, self._past = self.monitor.known_step_costs(signals, end, self._past)
        return np.append(known.sum(axis=0), np.zeros(len(self.task.expectations)))

    def _evaluate(self) -> Episodes:
        """Return the finished episode as a batch of one."""
        signals = {name: array[None, : self._length] for name, array in self._signals.items()}
        end = np.arange(self._length)[None] == self._length - 1
        satisfied, cost = self.monitor(signals, end=end)
        columns: dict[str, Any] = {
            "returns": np.array([self._return]),
            "length": np.array([self._length - 1]),
        }
        # A cost that is not known before the end is the distance from satisfaction.
        shaping_cost = total_shaping_costs(self.monitor, signals, end) if any(self.monitor.shaped_at_end) else None
        if shaping_cost is not None:
            columns["shaping_cost"] = np.where(self.monitor.shaped_at_end, shaping_cost, cost)
        return Episodes(cost=cost, satisfied=satisfied, **columns, **self.monitor.measure(signals, end=end)._asdict())

    def _episode_cost(self, episode: Episodes) -> NDArray[np.float64]:
        """Return the cost of an episode `[K]`; an excess is in the unit of its value."""
        widths = [bound.width for bound in self.task.expectations]
        units = np.append(np.ones(episode.cost.shape[1]), widths)
        return np.asarray(
            learning_costs(self.task.expectations, episode, self.shared.belief.recent)[0] * units, np.float64
        )


@dataclass
class Bridge:
    """A requirement for algorithms of Stable-Baselines3.

    Args:
        domain: a Gymnasium domain, from `psyco.make`.
        requirement: the requirement, as text or parsed.
        cost_scale: weight of one unit of cost against one of reward at λ = 1/2.
        check_episodes: deterministic episodes per check.
        check_every: training steps between two checks, or five times the steps of a check if that is more.
        seed: of the check episodes.
        margin: aim above the required probability, by this part of the distance to 1.
        gain: integral gain of λ per check.
        belief_window: checks in the belief.
        curriculum: constraints rise from nothing to full over this part of learning.
    """

    domain: Domain
    requirement: Requirement | str
    cost_scale: float = 1.0
    check_episodes: int = option(5, "Deterministic episodes in each check.", minimum=1)
    check_every: int = option(1000, "Training steps between two checks.", minimum=1)
    seed: int = option(0, "Seed of the check episodes.", minimum=0, maximum=2**31 - 1)
    margin: float = option(0.3, "Aim above the required probability.", minimum=0.0, below=1.0)
    gain: float = option(0.1, "Integral gain of λ per check.", above=0.0)
    belief_window: float = option(10.0, "Checks that the belief remembers.", minimum=1.0)
    curriculum: float = option(0.3, "Part of learning in which constraints rise.", minimum=0.0, below=1.0)

    def __post_init__(self) -> None:
        if not isinstance(self.domain, GymDomain):
            raise RunError(
                f"{self.domain.name} is not a Gymnasium environment, so Stable-Baselines3 cannot learn in it; "
                "psyco synthesize can"
            )
        check_declared(self)
        self.requirement = parse(self.requirement) if isinstance(self.requirement, str) else self.requirement
        check_decidable(self.requirement)
        check_signals(self.requirement, signal_table(self.domain), self.domain.name)
        check_bounds(self.requirement, self.domain.horizon, self.domain.name)
        self._monitor = compile_monitor(
            [bound.formula for bound in self.requirement.probability_bounds],
            measured=[each.subject for each in self.requirement.measured],
        )
        task = make_task(self.requirement, expectation_bounds(self.requirement, self.domain))
        self.shared = SharedLambda(
            LambdaController(task, GENERATIONS, self.margin, self.curriculum, self.gain, self.belief_window)
        )
        self._checks = 0
        self._check_steps = 0  # of the last check
        self._training_episodes = 0  # of all environments but those of the checks
        self._ledger = Ledger()

    def _count_episode(self) -> None:
        self._training_episodes += 1

    def env(self) -> ConstrainedEnv:
        """Return a new environment to learn in; all environments of a bridge share λ."""
        return self._env(self._count_episode)

    def _env(self, on_end: Callable[[], None] | None = None) -> ConstrainedEnv:
        assert isinstance(self.domain, GymDomain)
        env = self.domain.make_env()
        return ConstrainedEnv(env, self.domain, self._monitor, self.shared, self.cost_scale, on_end)

    def callback(self) -> Any:
        """Return the callback for `model.learn`, which checks the policy, moves λ and logs `psyco/*`."""
        try:
            from stable_baselines3.common.callbacks import BaseCallback
        except ImportError:
            raise RunError('the bridge needs Stable-Baselines3: pip install "psyco[sb3]"') from None
        bridge = self

        class LambdaCallback(BaseCallback):
            def _on_training_start(self) -> None:
                self.next_check = self.num_timesteps + bridge.check_every

            def _on_step(self) -> bool:
                if self.num_timesteps >= self.next_check:
                    progress = self.num_timesteps / max(1, self.model._total_timesteps)
                    for name, value in bridge.check(self.model, progress).items():
                        self.logger.record(f"psyco/{name}", value)
                    pause = MIN_STEPS_PER_CHECK_STEP * bridge._check_steps
                    self.next_check += max(bridge.check_every, pause)
                return True

        return LambdaCallback()

    def check(self, model: Any, progress: float = 1.0) -> dict[str, float]:
        """Play deterministic episodes of the model, update belief and λ, and return the logged numbers.

        A key of `info` in the requirement that no episode had is an error, since it is probably misspelt.
        """
        env = self._env()
        keys = episode_keys(stream_key(self.seed, Stream.CHECK, self._checks), 0, self.check_episodes)
        self._checks += 1
        episodes: list[Episodes] = []
        for seed in episode_seeds(keys):
            observation, _ = env.reset(seed=seed)
            ended, state = False, None
            while not ended:
                first = np.array([state is None])
                action, state = model.predict(_model_obs(model, observation), state, first, deterministic=True)
                observation, _, terminated, truncated, _ = env.step(action)
                ended = terminated or truncated
            episodes.append(env.episode)
        env.close()
        for key in sorted(env.missing_keys):
            raise unknown_key_error(self.domain, key, f"in none of the {self.check_episodes} episodes of a check")
        checks: Episodes = jax.tree.map(lambda *columns: np.concatenate(columns), *episodes)
        self._check_steps = int(np.sum(checks.length))
        self.shared.observe(checks, progress)
        return {
            "return": float(np.mean(checks.returns)),
            "satisfied": float(np.mean(np.all(checks.satisfied, axis=1))),
            "lambda": self.shared.lam,
            "c_sat": float(self.shared.c_sat.min(initial=1.0)),
        }

    def certify(
        self,
        model: Any,
        path: str | Path,
        *,
        method: str = DEFAULT_METHOD,
        max_episodes: int | None = None,
    ) -> Certificate:
        """Save the model and verify that file on fresh episodes, as `psyco.verify` does.

        Every call is a further look: it takes episodes that no earlier one has seen, and the next share of the
        permitted error (1/2, 1/6, 1/12, ...). So learning and certifying until one passes stays within that error. The
        certificate lists all looks of this bridge; another bridge knows nothing of them.

        By default it takes at most a third of the training episodes, or the number that suffices with probability 0.9
        if that is more.
        """
        path = Path(path)
        if path.suffix != ".zip":
            path = path.with_name(f"{path.name}.zip")
        model.save(path)
        # The file does not contain the statistics of VecNormalize: with them, the model in memory is verified.
        own = f"sb3:{path}"
        policy = open_policy(own, trust=[own]) if _statistics(model) is None else as_policy(model)
        assert isinstance(self.requirement, Requirement)
        return verify(
            policy, self.domain, self.requirement, seed=self.seed, method=method,
            max_episodes=self._max_episodes if max_episodes is None else max_episodes, ledger=self._ledger,
        )  # fmt: skip

    @property
    def _max_episodes(self) -> int:
        """The default maximum number of episodes of a certificate."""
        assert isinstance(self.requirement, Requirement)
        needed = [certificate_length(each, DECISION_PROBABILITY) for each in self.requirement.probability_constraints]
        if not needed:  # the length of a test of an expectation depends on the variance
            return DEFAULT_MAX_EPISODES
        return min(max(int(VERIFICATION_SHARE * self._training_episodes), *needed), DEFAULT_MAX_EPISODES)


def _model_obs(model: Any, observation: Any) -> Any:
    """Return an observation as the model sees it: normalized under VecNormalize."""
    statistics = _statistics(model)
    return observation if statistics is None else statistics.normalize_obs(observation)


def _statistics(model: Any) -> Any:
    return model.get_vec_normalize_env() if hasattr(model, "get_vec_normalize_env") else None
