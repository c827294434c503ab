"""The whole way of a policy: learn, certify, export, run it where there is no JAX, watch, alarm, guard.

A cart balances a pole near the middle of its rail. After 500 episodes in the field the pole is another one, 200 times
as heavy. Everything is written to the folder `deployment`; `deployment/watch.html` shows how the promise was lost.
"""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium.envs.classic_control import CartPoleEnv

import psyco
from psyco import runtime

STEPS = 100
MIDDLE = "[ G (abs(obs[0]) <= 0.12 & !terminated) ] & C>=0.98"
REQUIREMENT = f"P>=0.85 {MIDDLE}"
FOLDER = Path("deployment")


class Cart(CartPoleEnv):
    """CartPole with a pole of any mass."""

    def __init__(self, mass: float = 0.1, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.masspole, self.total_mass, self.polemass_length = mass, mass + self.masscart, mass * self.length


def balance(observation: Any) -> int:
    """A linear controller, the fallback: plain, and hard to upset."""
    return int(np.dot(observation, [2.0, 2.0, 18.0, 3.5]) > 0.0)


def episode(env: CartPoleEnv, act: Any, monitor: runtime.Monitor, seed: int) -> bool:
    """One episode in the field: did it do what the requirement asks?"""
    observation, _ = env.reset(seed=seed)
    status = monitor.start()
    status = monitor.update({"obs": observation, "terminated": False})
    while not status.over:
        observation, _, terminated, _, _ = env.step(int(act(observation)))
        status = monitor.update({"obs": observation, "terminated": terminated}, end=terminated)
    return status.outlook is runtime.Outlook.SATISFIED


def main() -> None:
    # Learn and certify.
    run = psyco.start(
        psyco.make(Cart, horizon=STEPS),
        REQUIREMENT,
        FOLDER / "run",
        overwrite=True,
        learner="safe-es",
        episodes=1500,
        settings=psyco.Settings(selection_episodes=50, verify_every=0),
    )
    print(run.certificate)

    # Export, for where there is no Python either.
    print(*psyco.export_c(run, FOLDER / "c", horizon=STEPS), sep="\n")

    # Run and watch, with NumPy alone.
    policy = runtime.load_policy(FOLDER / "run" / "policy.safetensors")
    monitor = runtime.Monitor(REQUIREMENT, horizon=STEPS)
    watcher = psyco.FieldTest(FOLDER / "run" / "certificate.json", false_alarm_every=10_000)
    poles, alarm = [Cart(), Cart(mass=20.0)], None
    with open(FOLDER / "field.csv", "w") as log:
        print("satisfied", file=log)
        for number in range(5_000):
            satisfied = episode(poles[number >= 500], policy, monitor, seed=number)
            print(int(satisfied), file=log)
            alarm = watcher.update(satisfied)
            if alarm is not None:
                break
    print(f"ALARM {alarm}")
    # The same from the command line, with a page; its exit status says that there is an alarm.
    subprocess.run(
        [sys.executable, "-m", "psyco", "watch", "--certificate", FOLDER / "run" / "certificate.json", "--outcomes",
         FOLDER / "field.csv", "--false-alarm-every", "10000", "--page", FOLDER / "watch.html"], check=False,
    )  # fmt: skip

    # Guard: what can be promised with the new pole is less, and is checked before the policy goes out again.
    heavy = psyco.make(Cart, mass=20.0, horizon=STEPS)
    weaker = f"P>=0.7 {MIDDLE}"
    risk = psyco.learn_risk(policy, heavy, weaker, episodes=400, limit=0.05)
    print(risk)
    guard = psyco.Guard(policy, balance, weaker, when=risk, horizon=STEPS)
    print(psyco.verify(guard, heavy, weaker))


if __name__ == "__main__":
    main()
