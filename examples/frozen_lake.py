"""FrozenLake: reach the goal, which a signal of one's own tells, and which the requirement names as a label."""

import psyco

domain = psyco.make(
    "FrozenLake-v1",
    is_slippery=False,
    horizon=30,
    signals={"goal": lambda observation, info: observation == 15},
)
result = psyco.synthesize(domain, 'P>=0.9 [ F "goal" ] & C>=0.98', episodes=4_000, sigma=1.0, alpha=0.3)
print(result.certificate)
