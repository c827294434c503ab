"""CartPole that stays near the middle: a Gymnasium environment by its id, a requirement on its observations.

The same on the command line, with two processes:

    psyco synthesize CartPole-v1 --require 'P>=0.95 [ G (abs(obs[0]) <= 1) ] & C>=0.98' --workers 2
"""

import psyco

domain = psyco.make("CartPole-v1")
result = psyco.synthesize(
    domain,
    "P>=0.95 [ G (abs(obs[0]) <= 1) ] & C>=0.98",
    episodes=2_000,
    settings=psyco.Settings(selection_episodes=100, verify_every=0),
)
print(result.certificate)
