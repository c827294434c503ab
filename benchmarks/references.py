"""`ppo` and `sac` beside those of Stable-Baselines3 with the settings of RL Baselines3 Zoo: unconstrained, equal steps.

Each run is a process of its own on one core. Its row is appended to `benchmarks/references.csv`, which is part of the
repository: what stands there is not run again, so the references are run once, and an interrupted table goes on.

python -m benchmarks.references ppo --tasks LunarLander Hopper --seeds 700 701 702
"""

from __future__ import annotations

import argparse
import csv
import importlib.metadata
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from benchmarks.real import processor

ROOT = Path(__file__).parents[1]
FILE = Path(__file__).with_suffix(".csv")
EPISODES = 100  # of the deployed policy, after learning
EVALUATION_SEED = 10_000
STEPS = {"ppo": 1_000_000, "sac": 300_000}
SIDES = ("psyco", "stable-baselines3")
COLUMNS = ("learner", "task", "side", "version", "seed", "steps", "return", "seconds", "processor")
THREADS = {"OMP_NUM_THREADS": "1", "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"}


class Task(NamedTuple):
    """An environment, and the Zoo's settings for it; `environments`, `normalize` and `layers` are ours to spell out."""

    name: str
    ppo: dict[str, Any]
    sac: dict[str, Any]
    for_sac: Mapping[str, Any] = MappingProxyType({})  # arguments of the environment, where SAC needs others


def tuned(**settings: Any) -> dict[str, Any]:
    """Return the Zoo's settings of PPO for a robot of MuJoCo."""
    return {"normalize": True, "layers": [256, 256], "n_steps": 512} | settings


ROBOT_SAC = {"learning_starts": 10_000}
TASKS = {
    "HalfCheetah": Task("HalfCheetah-v5", tuned(
        batch_size=64, gamma=0.98, learning_rate=2.0633e-05, ent_coef=0.000401762, clip_range=0.1, n_epochs=20,
        gae_lambda=0.92, max_grad_norm=0.8, vf_coef=0.58096), ROBOT_SAC),
    "Hopper": Task("Hopper-v5", tuned(
        batch_size=32, gamma=0.999, learning_rate=9.80828e-05, ent_coef=0.00229519, clip_range=0.2, n_epochs=5,
        gae_lambda=0.99, max_grad_norm=0.7, vf_coef=0.835671), ROBOT_SAC),
    "Walker2d": Task("Walker2d-v5", {
        "normalize": True, "batch_size": 32, "n_steps": 512, "gamma": 0.99, "learning_rate": 5.05041e-05,
        "ent_coef": 0.000585045, "clip_range": 0.1, "n_epochs": 20, "gae_lambda": 0.95, "max_grad_norm": 1.0,
        "vf_coef": 0.871923}, ROBOT_SAC),
    "Ant": Task("Ant-v5", {"normalize": True}, ROBOT_SAC),
    "BipedalWalker": Task("BipedalWalker-v3", {
        "normalize": True, "environments": 32, "n_steps": 2048, "batch_size": 64, "gae_lambda": 0.95, "gamma": 0.999,
        "n_epochs": 10, "learning_rate": 3e-4, "clip_range": 0.18}, {
        "learning_rate": 7.3e-4, "buffer_size": 300_000, "gamma": 0.98, "tau": 0.02, "train_freq": 64,
        "gradient_steps": 64, "learning_starts": 10_000, "use_sde": True, "layers": [400, 300], "log_std_init": -3}),
    "LunarLander": Task("LunarLander-v3", {
        "environments": 16, "n_steps": 1024, "batch_size": 64, "gae_lambda": 0.98, "gamma": 0.999, "n_epochs": 4,
        "ent_coef": 0.01}, {
        "learning_rate": 7.3e-4, "linear": True, "tau": 0.01, "learning_starts": 10_000, "layers": [400, 300]},
        {"continuous": True}),
}  # fmt: skip

Act = Callable[[np.ndarray], Any]


class Cell(NamedTuple):
    """One run."""

    learner: str
    task: str
    side: str
    seed: int
    steps: int


def environment_of(cell: Cell) -> tuple[str, Mapping[str, Any]]:
    """Return the id of the environment, and its arguments."""
    task = TASKS[cell.task]
    return task.name, task.for_sac if cell.learner == "sac" else {}


def learn_reference(cell: Cell) -> Act:
    """Learn with Stable-Baselines3; returns the deterministic policy."""
    import stable_baselines3 as sb3
    import torch
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import VecNormalize

    torch.set_num_threads(1)
    settings = dict(getattr(TASKS[cell.task], cell.learner))
    name, arguments = environment_of(cell)
    vector: Any = make_vec_env(name, settings.pop("environments", 1), seed=cell.seed, env_kwargs=arguments)
    if settings.pop("normalize", False):
        vector = VecNormalize(vector, gamma=settings.get("gamma", 0.99))
    network: dict[str, Any] = {}
    if layers := settings.pop("layers", None):
        network["net_arch"] = layers
        if cell.learner == "ppo":  # the Zoo's robots
            network |= {"log_std_init": -2, "ortho_init": False, "activation_fn": torch.nn.ReLU}
    if log_std := settings.pop("log_std_init", None):
        network["log_std_init"] = log_std
    if settings.pop("linear", False):
        rate = settings["learning_rate"]
        settings["learning_rate"] = lambda left: left * rate
    algorithm = {"ppo": sb3.PPO, "sac": sb3.SAC}[cell.learner]
    model = algorithm("MlpPolicy", vector, seed=cell.seed, device="cpu", policy_kwargs=network, **settings)
    model.learn(cell.steps)

    def act(observation: np.ndarray) -> Any:
        seen = vector.normalize_obs(observation) if isinstance(vector, VecNormalize) else observation
        return model.predict(seen, deterministic=True)[0]

    return act


def learn_ours(cell: Cell) -> Act:
    """Learn with PSyCo and its defaults; returns the policy as it is deployed."""
    import psyco
    import psyco.runtime

    name, arguments = environment_of(cell)
    domain = psyco.make(name, **arguments)
    settings = psyco.Settings(learner=cell.learner)
    result = psyco.synthesize(domain, "Rmax=? [ C ]", steps=cell.steps, seed=cell.seed, settings=settings)
    with TemporaryDirectory() as folder:
        result.policy.save(Path(folder) / "policy.safetensors")
        return psyco.runtime.load_policy(Path(folder) / "policy.safetensors")


def mean_return(act: Act, cell: Cell) -> float:
    """Return the mean return of a policy over fresh episodes, the same ones for all."""
    import gymnasium

    name, arguments = environment_of(cell)
    environment, returns = gymnasium.make(name, **arguments), []
    for episode in range(EPISODES):
        observation, _ = environment.reset(seed=EVALUATION_SEED + episode)
        total, done = 0.0, False
        while not done:
            observation, reward, terminated, truncated, _ = environment.step(act(observation))
            total, done = total + float(reward), terminated or truncated
        returns.append(total)
    return float(np.mean(returns))


def run(cell: Cell) -> dict[str, Any]:
    """Return the row of a run; `seconds` is the processor time of learning, imports left out."""
    import gymnasium  # noqa: F401  both sides need it
    import stable_baselines3  # noqa: F401

    import psyco  # noqa: F401

    began = time.process_time()
    act = (learn_ours if cell.side == "psyco" else learn_reference)(cell)
    seconds = time.process_time() - began
    row = cell._asdict() | {"version": importlib.metadata.version(cell.side), "processor": processor()}
    return row | {"return": round(mean_return(act, cell), 1), "seconds": round(seconds)}


def read_rows() -> list[dict[str, str]]:
    """Return the rows that are there."""
    if not FILE.exists():
        return []
    with FILE.open(newline="") as file:
        return list(csv.DictReader(file))


def append(row: dict[str, Any]) -> None:
    """Add a row to the file."""
    is_new = not FILE.exists()
    with FILE.open("a", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        if is_new:
            writer.writeheader()
        writer.writerow(row)


def interquartile_mean(values: list[float]) -> float:
    """Return the mean of the middle half; of three, values at the border count by their part."""
    ordered = np.repeat(np.sort(values), 4)
    return float(ordered[len(values) : 3 * len(values)].mean())


def table(rows: list[dict[str, str]]) -> Iterator[str]:
    """Yield the table; the last columns are our interquartile mean and processor time, as parts of the reference's."""
    yield "| learner | task | steps | Stable-Baselines3 | seconds | PSyCo | seconds | return | time |"
    yield "|---|---|---|---|---|---|---|---|---|"
    kinds = dict.fromkeys((row["learner"], row["task"], row["steps"]) for row in rows)
    for learner, task, steps in sorted(kinds):
        shown, means, times = [], {}, {}
        for side in reversed(SIDES):
            mine = [row for row in rows if (row["learner"], row["task"], row["steps"]) == (learner, task, steps)]
            mine = sorted((row for row in mine if row["side"] == side), key=lambda row: int(row["seed"]))
            returns = [float(row["return"]) for row in mine]
            if mine:
                means[side] = interquartile_mean(returns)
                times[side] = float(np.mean([float(row["seconds"]) for row in mine]))
            shown += [", ".join(f"{value:.4g}" for value in returns), f"{times[side]:.0f}" if mine else ""]
        both = len(means) == 2
        ratio = f"{means[SIDES[0]] / means[SIDES[1]]:.2f}" if both and means[SIDES[1]] > 0 else ""
        spent = f"{times[SIDES[0]] / times[SIDES[1]]:.2f}" if both else ""
        yield f"| `{learner}` | {task} | {int(steps):,} | {' | '.join(shown)} | {ratio} | {spent} |"


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("learners", nargs="*", metavar="LEARNER", help="ppo, sac; default: both")
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=list(SIDES))
    parser.add_argument("--seeds", type=int, nargs="+", default=[700, 701, 702])
    parser.add_argument("--steps", type=float, help="instead of a million for ppo, and 300,000 for sac")
    parser.add_argument("--cell", nargs=5, help=argparse.SUPPRESS)
    chosen = parser.parse_args(arguments)
    if unknown := sorted(set(chosen.learners) - set(STEPS)):
        parser.error(f"unknown learner {', '.join(unknown)}; there are: {', '.join(STEPS)}")
    if chosen.cell:
        learner, task, side, seed, steps = chosen.cell
        append(run(Cell(learner, task, side, int(seed), int(steps))))
        return
    for learner in chosen.learners or STEPS:
        for task in chosen.tasks:
            for side in chosen.sides:
                for seed in chosen.seeds:
                    cell = Cell(learner, task, side, seed, int(chosen.steps or STEPS[learner]))
                    names = [str(value) for value in cell]
                    if all([row[name] for name in Cell._fields] != names for row in read_rows()):
                        print("running", *names, flush=True)
                        command = [sys.executable, "-m", "benchmarks.references", "--cell", *names]
                        subprocess.run(command, check=True, cwd=ROOT, env=os.environ | THREADS)
    print("\n".join(table(read_rows())))


if __name__ == "__main__":
    main()
