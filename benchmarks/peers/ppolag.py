"""OmniSafe's PPOLag, a program of its own for an interpreter of its own: OmniSafe needs other versions than we do.

    python3.10 -m venv omnisafe && omnisafe/bin/pip install omnisafe==0.5.0
    python -m benchmarks.peers --omnisafe omnisafe/bin/python

It imports nothing of PSyCo. What it has learned is written as plain arrays, which `act` plays without OmniSafe.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import time
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import numpy as np

ROOT = Path(__file__).parents[2]
EPOCH = 4000  # steps between two updates
NOT_INSTALLED = (
    "OmniSafe cannot be imported by {python}: {error}. It needs an environment of its own, with Python 3.8 to 3.10 and "
    "Gymnasium 0.28: python3.10 -m venv omnisafe && omnisafe/bin/pip install omnisafe==0.5.0, then "
    "--omnisafe omnisafe/bin/python"
)


def act(path: Path) -> Any:
    """The policy of a file as a function of an observation; as OmniSafe plays it without noise."""
    with np.load(path, allow_pickle=False) as file:
        parts = {name: file[name] for name in file.files}
    low, high = parts["low"], parts["high"]
    layers = [(parts[f"w{k}"], parts[f"b{k}"]) for k in range(sum(name.startswith("w") for name in parts))]

    def policy(observation: Any) -> Any:
        x = np.clip((np.asarray(observation, np.float64).ravel() - parts["mean"]) / parts["std"], -5.0, 5.0)
        for k, (weight, bias) in enumerate(layers):
            x = weight @ x + bias
            x = np.tanh(x) if k < len(layers) - 1 else x
        return (low + (np.clip(x, -1.0, 1.0) + 1.0) / 2.0 * (high - low)).astype(np.float32)

    return policy


def _importable_on_newer_pythons() -> None:
    """Safety-Gymnasium 1.0.0 has arrays as defaults of dataclasses, which Python refuses from 3.11 on."""
    plain = dataclasses._get_field  # type: ignore[attr-defined]

    def lenient(cls: Any, name: str, kind: Any, kw_only: Any) -> Any:
        default = getattr(cls, name, None)
        if isinstance(default, np.ndarray):
            setattr(cls, name, dataclasses.field(default_factory=default.copy))
        return plain(cls, name, kind, kw_only)

    dataclasses._get_field = lenient  # type: ignore[attr-defined]


def _made(task: str) -> Any:
    sys.path.insert(0, str(ROOT))
    from benchmarks.peers import tasks

    if task == "velocity":  # Gymnasium 0.28 has no v5, whose dynamics are those of v4
        return tasks.Fast(gymnasium.make("HalfCheetah-v4", max_episode_steps=tasks.TASKS[task].horizon))
    return tasks.TASKS[task].make()


def _register(task: str) -> None:
    import torch
    from omnisafe.envs.core import CMDP, env_register

    @env_register
    class Peer(CMDP):  # type: ignore[misc]
        """One environment, as OmniSafe wants it: tensors, and the cost beside the reward."""

        _support_envs: ClassVar[list[str]] = ["Peer-v0"]
        need_auto_reset_wrapper = True
        need_time_limit_wrapper = False
        _num_envs = 1

        def __init__(self, env_id: str, **_: Any) -> None:
            super().__init__(env_id)
            self.env = _made(task)
            self._observation_space = self.env.observation_space
            self._action_space = self.env.action_space

        def reset(self, seed: int | None = None, options: Any = None) -> Any:
            observation, info = self.env.reset(seed=seed)
            return torch.as_tensor(observation, dtype=torch.float32), info

        def step(self, action: Any) -> Any:
            observation, reward, terminated, truncated, info = self.env.step(action.detach().cpu().numpy())
            values = observation, reward, info["cost"], terminated, truncated
            found = [torch.as_tensor(value, dtype=torch.float32) for value in values]
            info["final_observation"] = found[0]
            return (*found, info)

        @property
        def max_episode_steps(self) -> int:
            from benchmarks.peers.tasks import TASKS

            return TASKS[task].horizon

        def set_seed(self, seed: int) -> None:
            self.env.reset(seed=seed)

        def render(self) -> Any:
            raise NotImplementedError

        def close(self) -> None:
            self.env.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, kind in (("task", str), ("steps", int), ("seed", int), ("limit", float), ("out", Path)):
        parser.add_argument(name, type=kind)
    asked = parser.parse_args()
    _importable_on_newer_pythons()
    try:
        import omnisafe
        import torch
    except ImportError as error:
        raise SystemExit(NOT_INSTALLED.format(python=sys.executable, error=error)) from None
    _register(asked.task)
    logs = asked.out.with_suffix("")
    steps = -(-asked.steps // EPOCH) * EPOCH  # it learns in whole epochs
    agent = omnisafe.Agent(
        "PPOLag",
        "Peer-v0",
        custom_cfgs={
            "seed": asked.seed,
            "train_cfgs": {"total_steps": steps, "vector_env_nums": 1, "torch_threads": 1, "device": "cpu"},
            "algo_cfgs": {"steps_per_epoch": EPOCH},
            "lagrange_cfgs": {"cost_limit": asked.limit},
            "logger_cfgs": {
                "use_wandb": False,
                "use_tensorboard": False,
                "log_dir": str(logs),
                "save_model_freq": steps // EPOCH,
            },
        },
    )
    began = time.perf_counter()
    agent.learn()
    seconds = time.perf_counter() - began
    saved = max(logs.rglob("epoch-*.pt"), key=lambda path: int(path.stem.partition("-")[2]))
    state = torch.load(saved, map_location="cpu", weights_only=True)
    layers = sorted({int(name.split(".")[1]) for name in state["pi"] if name.startswith("mean.")})
    parts: dict[str, Any] = {"seconds": seconds}
    env = _made(asked.task)
    parts |= {"low": env.action_space.low, "high": env.action_space.high}
    for k, layer in enumerate(layers):
        parts |= {
            f"w{k}": state["pi"][f"mean.{layer}.weight"].numpy(),
            f"b{k}": state["pi"][f"mean.{layer}.bias"].numpy(),
        }
    seen = state.get("obs_normalizer")
    parts["mean"] = seen["_mean"].numpy() if seen else np.zeros(env.observation_space.shape)
    parts["std"] = seen["_std"].numpy() if seen else np.ones(env.observation_space.shape)
    np.savez(asked.out, **parts)


if __name__ == "__main__":
    main()
