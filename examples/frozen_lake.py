"""FrozenLake: reach the goal, which a signal of one's own tells, and which the requirement names as a label."""

import psyco

domain = psyco.make("FrozenLake-v1", signals={"goal": lambda observation, info: observation == 15})
# With 16 observations and 4 actions a table is learned. No policy reaches the goal in more than 74.4% of episodes.
result = psyco.synthesize(domain, 'P>=0.7 [ F "goal" ] & C>=0.95', episodes=20_000)
print(result.certificate)
