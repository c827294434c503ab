"""Pendulum with a gentle motor: torques above 1.2 are allowed, but hardly ever wanted."""

import psyco

domain = psyco.make("Pendulum-v1", horizon=100)
result = psyco.synthesize(domain, "P>=0.9 [ G (abs(action[0]) <= 1.2) ] & C>=0.98", episodes=2_000)
print(result.certificate)
