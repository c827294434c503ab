"""Tutorial 1: the paper's Particle Dance. All files are written to the folder `dance`."""

# --8<-- [start:learn]
import psyco

requirement = "P>=0.85 [ G (distance >= 0.1 | collisions <= 1) ] & C>=0.98"
run = psyco.start("particle-dance", requirement, "dance", seed=0, overwrite=True)
print(run.certificate)
# --8<-- [end:learn]

# --8<-- [start:curves]
run.metrics.plot().savefig("dance/curves.png", dpi=80)
# --8<-- [end:curves]

# --8<-- [start:play]
episode = psyco.record(run, seed=3)
print(len(episode["step"]) - 1, "steps, closest", episode["distance"].min())
print(psyco.check_path("G (distance >= 0.1 | collisions <= 1)", episode))
# --8<-- [end:play]

# --8<-- [start:unconstrained]
unconstrained = psyco.synthesize("particle-dance", "Rmax=? [ C ]", seed=0, episodes=20_000)
certificate = psyco.verify(unconstrained.policy, "particle-dance", requirement)
print(certificate.verdict.name, certificate.return_summary)
# --8<-- [end:unconstrained]

# --8<-- [start:picture]
print(psyco.render(run, "dance", seed=3))
# --8<-- [end:picture]
