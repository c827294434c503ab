"""The bridge to Stable-Baselines3: its algorithms learn under a requirement, and end in the same certificate.

    bridge = Bridge(psyco.make("CartPole-v1"), "P>=0.95 [ G (abs(obs[0]) <= 1) ] & C>=0.98")
    model = PPO("MlpPolicy", bridge.env())
    model.learn(100_000, callback=bridge.callback())
    print(bridge.certify(model, "cartpole.zip"))

The environment pays `λ reward - (1 - λ) cost`, where cost is what each step adds to the cost of the requirement's
formulas. A top-level `G` of a state formula costs in the step that breaks it; what any other formula costs is known,
and paid, when the episode ends, and so is what a value has in excess of its bound. Under `Rmin=? [ C ]` the reward
changes its sign. Now and then the callback plays deterministic episodes, what would be deployed, and moves λ by them:
down while the requirement is missed, up while it is more than met. Nothing of Stable-Baselines3 is changed, so PPO,
A2C, SAC, TD3 and DQN all work. Algorithms with a replay buffer keep some rewards of an earlier λ in it; let λ move
slowly. λ lives in one process: use DummyVecEnv, not SubprocVecEnv.

The economy is that of `psyco synthesize`: checks take at most a fifth as many steps as learning, `F` of a
return costs by how far that was from enough, a demand that all checks fail alike does not silence the return, and the
certificate takes at most a third of the training episodes, or what it needs if that is more.
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

from psyco._src.api.verify import verify
from psyco._src.core.checks import check_seed
from psyco._src.core.errors import RunError
from psyco._src.envs.base import Domain, signal_table
from psyco._src.envs.gym_env import INFO, GymDomain, Transition, moment_signals
from psyco._src.learners.belief import double_precision
from psyco._src.learners.expectation_constraints import costs, means_of
from psyco._src.learners.lagrangian import FLOOR, MANY, Lagrangian, shares, silent
from psyco._src.logic.array_eval import BEGINNING
from psyco._src.logic.ast import Requirement
from psyco._src.logic.batch_monitor import BatchMonitor, compile_monitor
from psyco._src.logic.parser import parse
from psyco._src.logic.validate import check_bounds, check_signals
from psyco._src.policies.external import as_policy, open_policy
from psyco._src.rollout.episodes import Episodes, Stream, episode_keys, episode_seeds, stream_key
from psyco._src.rollout.trace import graded
from psyco._src.runs.budget import CHANCE, SHARE, certificate_length
from psyco._src.verification.certificate import Certificate
from psyco._src.verification.info_keys import unknown_key
from psyco._src.verification.methods import DEFAULT_MAX_EPISODES, DEFAULT_METHOD
from psyco._src.verification.verifier import check_decidable

PROGRESS = 1_000_000  # the whole of learning, for the rule's schedule
RARELY = 5  # training steps for each step of a check, at least


class SharedLambda:
    """λ as all environments of a bridge see it: what the checks have made of it so far, by the learners' own rule."""

    def __init__(self, rule: Lagrangian) -> None:
        self.rule = rule
        self.belief, each = rule.init()
        self.c_sat = np.zeros(len(rule.c_req), np.float32)  # [K] that each demand is met
        self.alike = np.zeros(
            len(rule.c_req)
        )  # [K] checks in a row that have all failed it to the same extent
        self.set(each)

    def __getstate__(self) -> None:
        raise RunError("λ lives in this process: use DummyVecEnv, not SubprocVecEnv, with a bridge")

    def set(self, each: Any) -> None:
        """λ as each demand would have it, `[K]`; the weakest decides, and their costs share what is left."""
        self.each = jnp.asarray(each, jnp.float32)
        lam, weights = shares(self.each)
        self.lam, self.weights = float(lam), np.asarray(weights)

    def observe(self, checks: Episodes, progress: float) -> None:
        """Learn from episodes of the deployed policy, at this part of learning."""
        now = jnp.int32(progress * self.rule.generations)
        with double_precision():
            self.belief, c_sat, each = self.rule.steer(self.belief, self.each, now, checks)
        self.c_sat = np.asarray(c_sat)
        paid = costs(self.rule.means, checks)
        self.alike = np.where(silent(paid), self.alike + len(paid), 0.0)
        self.set(jnp.where(self.alike >= MANY, jnp.maximum(each, FLOOR), each))


class ConstrainedEnv(gymnasium.Wrapper):  # type: ignore[type-arg]
    """An environment that pays λ reward - (1 - λ) cost; `info["psyco"]` has the verdict when an episode ends."""

    def __init__(
        self,
        env: Any,
        domain: GymDomain,
        monitor: BatchMonitor,
        weighing: SharedLambda,
        cost_scale: float,
        sign: float = 1.0,  # -1 where the return is to be small
        ended: Callable[[], None] | None = None,  # called at the end of each episode
    ) -> None:
        super().__init__(env)
        self.domain, self.monitor, self.weighing = domain, monitor, weighing
        self.cost_scale, self.sign, self.ended = cost_scale, sign, ended
        self.unseen = {name for name in monitor.signals if name.startswith(INFO)}  # so far, in all episodes

    def reset(self, **arguments: Any) -> Any:
        """Start an episode, and its record."""
        observation, info = self.env.reset(**arguments)
        self._signals: dict[str, NDArray[Any]] = {}  # [n+1, ...] each, filled up to `_length`
        self._length, self._past = 0, BEGINNING  # states; what is judged of them
        self._raw, self._info = observation, info
        self._return, self._cost = 0.0, np.zeros(len(self.weighing.rule.c_req))
        return observation, info

    def step(self, action: Any) -> Any:
        """One step; the reward is what the algorithm should learn from."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        if not self._length:  # the first state shows the first action
            self._note(self._raw, self._info, action, 0.0, False, False)
        self._return += float(reward)
        self._note(observation, info, action, float(reward), terminated, truncated)
        ended = terminated or truncated
        if ended:
            if self.ended is not None:
                self.ended()
            self.episode = self._judge()
            cost = self._costs(self.episode)
            added = cost - self._cost
        else:
            added = self._known()
            self._cost += added
        lam = self.weighing.lam
        paid = lam * self.sign * float(reward) - (1.0 - lam) * self.cost_scale * float(
            self.weighing.weights @ added
        )
        if ended:
            satisfied = self.episode.satisfied[0]
            info = {**info, "psyco": {"satisfied": satisfied, "cost": cost, "return": self._return}}
        return observation, paid, terminated, truncated, info

    def _note(
        self, raw: Any, info: dict[str, Any], action: Any, reward: float, terminated: bool, truncated: bool
    ) -> None:
        moment = Transition(raw, info, action, self._length, reward, self._return, terminated, truncated)
        every = moment_signals(self.domain, self.monitor.signals, moment)
        self.unseen -= {name for name, value in every.items() if value is not None}
        for name in self.monitor.signals:
            # As in verification: 0, or false.
            value = np.asarray(False if every[name] is None else every[name])
            if name not in self._signals:
                self._signals[name] = np.zeros((self.domain.horizon + 1, *value.shape), value.dtype)
            kind = np.result_type(self._signals[name], value)  # a signal may begin as 0 and go on as 0.5
            self._signals[name] = self._signals[name].astype(kind, copy=False)
            self._signals[name][self._length] = value
        self._length += 1

    def _known(self) -> NDArray[np.float64]:
        """What the newest states cost `[K]`, as far as that does not depend on what comes."""
        new = slice(self._past.states, self._length)
        signals = {name: array[new] for name, array in self._signals.items()}
        unended = np.zeros(new.stop - new.start, bool)
        known, self._past = self.monitor.arising(signals, unended, self._past)
        return np.append(known.sum(axis=0), np.zeros(len(self.weighing.rule.means)))

    def _judge(self) -> Episodes:
        """An episode that has ended, as a batch of one."""
        signals = {name: array[None, : self._length] for name, array in self._signals.items()}
        end = np.arange(self._length) == self._length - 1
        satisfied, cost = self.monitor(signals, end=end)
        columns: dict[str, Any] = {"ret": np.array([self._return]), "length": np.array([self._length - 1])}
        # What is not known before the end is paid by how far it was from holding.
        grade = graded(self.monitor, signals, end) if any(self.monitor.graded_late) else None
        if grade is not None:
            columns["grade"] = np.where(self.monitor.graded_late, grade, cost)
        return Episodes(
            cost=cost, satisfied=satisfied, **columns, **self.monitor.measure(signals, end=end)._asdict()
        )

    def _costs(self, episode: Episodes) -> NDArray[np.float64]:
        """What it cost `[K]`, an excess in the unit of its value."""
        widths = [mean.width for mean in self.weighing.rule.means]
        units = np.append(np.ones(episode.cost.shape[1]), widths)
        return np.asarray(costs(self.weighing.rule.means, episode)[0] * units, np.float64)


@dataclass
class Bridge:
    """A requirement for algorithms of Stable-Baselines3.

    Args:
        domain: a Gymnasium domain, from `psyco.make`.
        requirement: what must hold, as text or parsed.
        cost_scale: what one unit of cost counts against one of reward at λ = 1/2.
        checks: deterministic episodes in each check.
        every: training steps between two checks, or five times as many as a check takes if that is more.
        seed: of the checks' episodes.
        margin: aim above the requirement, by this part of what is left up to 1.
        gain: how far λ moves per check and unit of satisfied share.
        memory: how many checks the belief remembers.
        curriculum: the demand rises from nothing to its full size over this part of learning.
    """

    domain: Domain
    requirement: Requirement | str
    cost_scale: float = 1.0
    checks: int = 5
    every: int = 1000
    seed: int = 0
    margin: float = 0.3
    gain: float = 0.1
    memory: float = 10.0
    curriculum: float = 0.3

    def __post_init__(self) -> None:
        if not isinstance(self.domain, GymDomain):
            raise RunError(
                f"{self.domain.name} is no Gymnasium environment, so Stable-Baselines3 cannot learn in it; "
                "psyco synthesize can"
            )
        if self.checks < 1 or self.every < 1:
            raise RunError(f"checks and every must be at least 1, got {self.checks} and {self.every}")
        self.seed = check_seed(self.seed)
        self.requirement = parse(self.requirement) if isinstance(self.requirement, str) else self.requirement
        check_decidable(self.requirement)
        check_signals(self.requirement, signal_table(self.domain), self.domain.name)
        check_bounds(self.requirement, self.domain.horizon, self.domain.name)
        demands, means = self.requirement.demands, means_of(self.requirement, self.domain)
        self._monitor = compile_monitor(
            [demand.formula for demand in demands],
            measured=[each.subject for each in self.requirement.measured],
        )
        rule = Lagrangian(
            tuple(d.p_req for d in demands),
            (*(d.confidence for d in demands), *(mean.confidence for mean in means)), PROGRESS, self.margin,
            self.curriculum, self.gain, self.memory, means=means,
        )  # fmt: skip
        self.state = SharedLambda(rule)
        self._played = 0
        self._checked = 0  # steps of the last check
        self._learned = 0  # episodes of all environments but those of the checks

    def _ended(self) -> None:
        self._learned += 1

    def env(self) -> ConstrainedEnv:
        """A new environment for the algorithm to learn in; all environments of a bridge follow the same λ."""
        return self._env(self._ended)

    def _env(self, ended: Callable[[], None] | None = None) -> ConstrainedEnv:
        assert isinstance(self.domain, GymDomain)
        assert isinstance(self.requirement, Requirement)
        sign = 1.0 if self.requirement.goal.maximize else -1.0
        env = self.domain.make_env()
        return ConstrainedEnv(env, self.domain, self._monitor, self.state, self.cost_scale, sign, ended)

    def callback(self) -> Any:
        """What `model.learn` takes: it checks the policy, moves λ, and logs `psyco/*`."""
        try:
            from stable_baselines3.common.callbacks import BaseCallback
        except ImportError:
            raise RunError('the bridge needs Stable-Baselines3: pip install "psyco[sb3]"') from None
        bridge = self

        class Steer(BaseCallback):
            def _on_training_start(self) -> None:
                self.next_check = self.num_timesteps + bridge.every

            def _on_step(self) -> bool:
                if self.num_timesteps >= self.next_check:
                    progress = self.num_timesteps / max(1, self.model._total_timesteps)
                    for name, value in bridge.check(self.model, progress).items():
                        self.logger.record(f"psyco/{name}", value)
                    # Where episodes are long, checks are rare.
                    self.next_check += max(bridge.every, RARELY * bridge._checked)
                return True

        return Steer()

    def check(self, model: Any, progress: float = 1.0) -> dict[str, float]:
        """Play deterministic episodes of the model, believe what they show, and move λ; returns what was seen.

        A key of `info` that the requirement names and that none of them had is an error: it is misspelt, most likely.
        """
        env = self._env()
        keys = episode_keys(stream_key(self.seed, Stream.CHECK, self._played), 0, self.checks)
        self._played += 1
        episodes: list[Episodes] = []
        for seed in episode_seeds(keys):
            observation, _ = env.reset(seed=seed)
            ended, memory = False, None
            while not ended:
                begins = np.array([memory is None])
                action, memory = model.predict(_seen(model, observation), memory, begins, deterministic=True)
                observation, _, terminated, truncated, _ = env.step(action)
                ended = terminated or truncated
            episodes.append(env.episode)
        env.close()
        for key in sorted(env.unseen):
            raise unknown_key(self.domain, key, f"in none of the {self.checks} episodes of a check")
        checks: Episodes = jax.tree.map(lambda *columns: np.concatenate(columns), *episodes)
        self._checked = int(np.sum(checks.length))
        self.state.observe(checks, progress)
        return {
            "return": float(np.mean(checks.ret)),
            "satisfied": float(np.mean(np.all(checks.satisfied, axis=1))),
            "lambda": self.state.lam,
            "c_sat": float(self.state.c_sat.min(initial=1.0)),
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

        By default it takes at most a third as many episodes as were learned from, or what a certificate needs with a
        chance of 90% if that is more.
        """
        path = Path(path)
        if path.suffix != ".zip":
            path = path.with_name(f"{path.name}.zip")
        model.save(path)
        # Statistics of VecNormalize are not in the file: then the model itself is what is verified.
        own = f"sb3:{path}"
        policy = open_policy(own, trust=[own]) if _statistics(model) is None else as_policy(model)
        return verify(
            policy, self.domain, self.requirement, seed=self.seed, method=method,
            max_episodes=self._room if max_episodes is None else max_episodes,
        )  # fmt: skip

    @property
    def _room(self) -> int:
        """Episodes that a certificate may take."""
        assert isinstance(self.requirement, Requirement)
        needed = [certificate_length(each, CHANCE) for each in self.requirement.probabilities]
        if not needed:  # how long the test of a mean takes depends on its spread
            return DEFAULT_MAX_EPISODES
        return min(max(int(SHARE * self._learned), *needed), DEFAULT_MAX_EPISODES)


def _seen(model: Any, observation: Any) -> Any:
    """What the model sees of an observation: scaled, where it learns under VecNormalize."""
    statistics = _statistics(model)
    return observation if statistics is None else statistics.normalize_obs(observation)


def _statistics(model: Any) -> Any:
    return model.get_vec_normalize_env() if hasattr(model, "get_vec_normalize_env") else None
