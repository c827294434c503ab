"""Tutorial 5: the meaning of a certificate: plan, looks, exact answers, replay, a refused policy."""

# ruff: noqa: E402
# --8<-- [start:plan]
import psyco

print(psyco.plan("P>=0.9 & C>=0.98", p=[0.85, 0.89, 0.95], max_episodes=1000, share=1))
# --8<-- [end:plan]

# --8<-- [start:policy]
domain = psyco.make("obstacle-run", grid=3, horizon=20)
requirement = "P>=0.9 [ G (count(caught) <= 1) ] & C>=0.98"
run = psyco.start(
    domain,
    requirement,
    "obstacles",
    episodes=6_000,
    overwrite=True,
    settings=psyco.Settings(selection_episodes=100, verify_every=0),
)
first = run.certificate
print(first.verdict.name, "after", first.episodes, "episodes; share of the permitted error:", first.share)
# --8<-- [end:policy]

# --8<-- [start:looks]
second = psyco.verify(run)
print(second.verdict.name, "with a share of", second.share)
for look in second.looks:
    print("  look:", look.verdict.name, look.episodes, look.share)
# --8<-- [end:looks]

# --8<-- [start:exact]
exact = psyco.exact(run)
print(exact.verdict.name, exact.value)
print("optimum over all controllers:", exact.optimum)
# --8<-- [end:exact]

# --8<-- [start:replay]
again = psyco.replay(first, run)
print("replayed, every number the same:", again.matches)
# --8<-- [end:replay]

# --8<-- [start:wrong]
constant = psyco.verify(lambda observation: 0, domain, requirement)
print(constant.verdict.name, constant.findings[0].share)
calls = []


def stateful(observation):
    """Act by the number of calls: a state that all episodes share."""
    calls.append(observation)
    return len(calls) % 4


try:
    psyco.verify(stateful, domain, requirement)
except psyco.PsycoError as error:
    print("refused:", str(error).splitlines()[0])
# --8<-- [end:wrong]

# --8<-- [start:picture]
import matplotlib.pyplot as plt
import numpy as np

truth, finding = exact.value.probabilities[0], second.findings[0]
figure, axis = plt.subplots(figsize=(7, 1.8), layout="constrained")
axis.plot([finding.lower, finding.upper], [0, 0], linewidth=8, alpha=0.4, label="confidence interval")
axis.plot(finding.share, 0, "ko", label="satisfied share")
axis.plot(truth, 0, "r|", markersize=24, label="exact probability")
axis.axvline(0.9, linestyle="--", color="black", label="required")
axis.set(yticks=[], xlim=(0.7, 1.0), xticks=np.arange(0.7, 1.01, 0.05), xlabel="probability")
axis.legend(ncols=4, fontsize=8, loc="upper center", bbox_to_anchor=(0.5, 1.35))
figure.savefig("certificate.png", dpi=100)
# --8<-- [end:picture]
