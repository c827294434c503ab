"""Pendulum with a gentle motor: in most episodes the torque stays below 1.5, though 2 is possible."""

import psyco

domain = psyco.make("Pendulum-v1", horizon=60)
result = psyco.synthesize(
    domain,
    "P>=0.85 [ G (abs(action[0]) <= 1.5) ] & C>=0.98",
    learner="snes",
    episodes=2_000,
    settings=psyco.Settings(bias="learned", verify_every=0),
)
print(result.certificate)
