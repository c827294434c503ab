"""CartPole with two constraints at once: stay near the middle, and last at least 150 steps."""

import psyco

domain = psyco.make("CartPole-v1", horizon=200)
requirement = """
    "near the middle": P>=0.9 [ G (abs(obs[0]) <= 1) ] & C>=0.95;
    "balanced":        P>=0.9 [ F ("end" & return >= 150) ] & C>=0.95;
"""
result = psyco.synthesize(domain, requirement, learner="snes", episodes=4_000, settings=psyco.Settings(verify_every=0))
print(result.certificate)
