"""An environment that reports `info["cost"]`, as those of the safety family do: walk to a goal, around a hazard."""

from typing import Any

import gymnasium
import numpy as np

import psyco


class Hazard(gymnasium.Env[Any, Any]):
    """A point starts at the left and is rewarded for going right; between lies a hazard that costs."""

    observation_space = gymnasium.spaces.Box(-5.0, 5.0, (2,))
    action_space = gymnasium.spaces.Box(-0.2, 0.2, (2,))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.position = np.array([-1.0, self.np_random.uniform(-0.3, 0.3)])
        return self.position.astype(np.float32), {"cost": 0.0}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        before = self.position[0]
        self.position = np.clip(self.position + action + self.np_random.normal(0.0, 0.02, 2), -5.0, 5.0)
        cost = float(np.linalg.norm(self.position) < 0.4)
        done = bool(self.position[0] >= 1.0)
        return self.position.astype(np.float32), float(self.position[0] - before), done, False, {"cost": cost}


domain = psyco.make(Hazard, horizon=40)
result = psyco.synthesize(
    domain,
    "P>=0.9 [ G (info.cost <= 0) ] & C>=0.98",
    learner="snes",
    episodes=4_000,
    settings=psyco.Settings(verify_every=0),
)
print(result.certificate)
