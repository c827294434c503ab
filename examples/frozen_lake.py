"""FrozenLake: reach the goal, which a signal of one's own tells, and which the requirement names as a label."""

import psyco

domain = psyco.make(
    "FrozenLake-v1",
    desc=["SFF", "FHF", "FFG"],
    is_slippery=False,
    horizon=20,
    signals={"goal": lambda observation, info: observation == 8},
)
# The reward is 1 at the goal and 0 elsewhere: a wide search finds it first.
result = psyco.synthesize(
    domain,
    'P>=0.9 [ F "goal" ] & C>=0.98',
    episodes=4_000,
    learner=psyco.SNES(sigma=0.5, learning_rate=0.2),
    settings=psyco.Settings(verify_every=0),
)
print(result.certificate)
