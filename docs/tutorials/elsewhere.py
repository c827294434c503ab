"""Tutorial 7: does it hold elsewhere? A family of environments, its worst member, and a certificate about 95% of it."""

# ruff: noqa: E402
# --8<-- [start:single]
import psyco

formula = "G (distance >= 0.1 | collisions <= 1)"
dance = psyco.make("particle-dance")
first = psyco.synthesize(dance, f"P>=0.85 [ {formula} ] & C>=0.98", seed=0)
print(first.certificate.verdict.name, "in the single environment")
# --8<-- [end:single]

# --8<-- [start:stress]
family = psyco.vary(dance, {"max_speed*": (0.7, 1.3), "max_acceleration*": (0.7, 1.3)})
worst = psyco.stress(first.policy, family, f"P>=0.85 [ {formula} ] & C>=0.98", search_episodes=5_000)
print(worst)
# --8<-- [end:stress]

# --8<-- [start:robust]
settings = psyco.Settings(robust="cvar:0.2", candidates=1, learner=psyco.SafeES(margin=0.5))
second = psyco.synthesize(family, f"P>=0.85 [ {formula} ] & C>=0.98", seed=0, settings=settings)
# --8<-- [end:robust]

# --8<-- [start:certificate]
two_levels = f"P>=0.85 in 95% of environments [ {formula} ] & C>=0.98"
certificate = psyco.verify(second.policy, family, two_levels, max_episodes=100_000)
print(certificate)
# --8<-- [end:certificate]

# --8<-- [start:failures]
mixture = psyco.verify(second.policy, family, f"P>=0.85 [ {formula} ] & C>=0.98", seed=1)
failures = psyco.counterexamples(second.policy, certificate=mixture, domain=family, worst=1)
print(failures)
# --8<-- [end:failures]

# --8<-- [start:picture]
from pathlib import Path

import matplotlib.pyplot as plt

Path("worst.gif").write_bytes(failures[0].film)
figure, axes = plt.subplots(1, 2, figsize=(8, 3.4), layout="constrained", sharey=True)
for axis, policy, title in zip(axes, (first.policy, second.policy), ("single domain", "robust"), strict=True):
    tried = psyco.stress(policy, family, f"P>=0.85 [ {formula} ]", search_episodes=3_000).tried
    x, y = ([each.parameters[name] for each in tried] for name in ("max_speed*", "max_acceleration*"))
    dots = axis.scatter(x, y, c=[each.share for each in tried], vmin=0.7, vmax=1.0, cmap="viridis", s=18)
    axis.set(title=f"learned: {title}", xlabel="max_speed, factor", ylabel="max_acceleration, factor")
figure.colorbar(dots, ax=axes, label="satisfied share")
figure.savefig("elsewhere.png", dpi=90)
# --8<-- [end:picture]
