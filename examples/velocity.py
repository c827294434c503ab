"""A running robot with a speed limit: in most episodes it is faster than 0.5 m/s in at most 10 steps.

Needs `pip install "psyco[mujoco]"`.
"""

import psyco

domain = psyco.make("HalfCheetah-v5", horizon=100)
result = psyco.synthesize(
    domain,
    "P>=0.85 [ G (count(info.x_velocity > 0.5) <= 10) ] & C>=0.95",
    episodes=400,
    settings=psyco.Settings(verify_every=0),
)
print(result.certificate)
