"""Tutorial 2: your own Gymnasium environment, from the check to a certificate. Needs no extra."""

# --8<-- [start:environment]
import gymnasium
import numpy as np

import psyco


class Courier(gymnasium.Env):
    """A courier walks to the right in gusts of wind; there is a puddle around the middle."""

    observation_space = gymnasium.spaces.Box(-2.0, 2.0, (2,))
    action_space = gymnasium.spaces.Box(-0.2, 0.2, (2,))

    def reset(self, *, seed=None, options=None):
        """Start at the left; `super().reset(seed=seed)` creates `np_random`, the only source of randomness."""
        super().reset(seed=seed)
        self.position = np.array([-1.0, self.np_random.uniform(-0.3, 0.3)])
        return self.position.astype(np.float32), {"wet": False}

    def step(self, action):
        """Move; the reward is the distance covered to the right."""
        before = self.position[0]
        wind = self.np_random.normal(0.0, 0.02, 2)
        self.position = np.clip(self.position + action + wind, -2.0, 2.0)
        arrived = bool(self.position[0] >= 1.0)
        wet = bool(np.linalg.norm(self.position) < 0.4)
        return self.position.astype(np.float32), self.position[0] - before, arrived, False, {"wet": wet}


# --8<-- [end:environment]

# --8<-- [start:check]
domain = psyco.make(Courier, horizon=40)
requirement = "P>=0.9 [ G !info.wet ] & C>=0.98"
for line in psyco.check(domain, requirement=requirement):
    print("FAIL" if line.passed is False else "ok  ", line.name, "-", line.message)
# --8<-- [end:check]

# --8<-- [start:plan]
print(psyco.plan("P>=0.9 & C>=0.98", p=[0.85, 0.95, 0.99]))
# --8<-- [end:plan]

# --8<-- [start:learn]
run = psyco.start(
    domain,
    requirement,
    "courier",
    episodes=1_000,
    overwrite=True,
    settings=psyco.Settings(selection_episodes=100, verify_every=0),
)
print(run.certificate)
# --8<-- [end:learn]

# --8<-- [start:ask]
questions = "P=? [ F obs[0] >= 1 ]; R{true}=? [ F obs[0] >= 1 ]"  # does it arrive, and after how many steps?
answers = psyco.verify(run.policy, domain, questions, max_episodes=500)
for answer in answers.answers:
    print(answer.question, answer.summary)
# --8<-- [end:ask]

# --8<-- [start:picture]
print(psyco.report(run))
print(psyco.render(run.policy, "courier", domain=domain, animation=False))
# --8<-- [end:picture]
