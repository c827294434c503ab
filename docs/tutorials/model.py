"""Tutorial 7: from a PRISM model to a certified controller: properties, optimum, certificate, exact answer."""

# ruff: noqa: E402
# --8<-- [start:model]
from pathlib import Path

import psyco

Path("courier.prism").write_text("""
mdp
const int N;

module courier
  at : [0..N] init 0;
  wet : bool init false;
  [bridge] at<N & !wet -> 0.9 : (at'=min(at+2,N)) + 0.1 : (wet'=true);
  [road] at<N & !wet -> (at'=at+1);
  [stay] at=N | wet -> true;
endmodule

label "delivered" = at=N;

rewards "time"
  at<N & !wet : 1;
endrewards
""")
Path("courier.props").write_text('"deliver": Pmax=? [ F "delivered" ];\n"early": Pmax=? [ F<=4 "delivered" ];\n')
for result in psyco.check("courier.prism", parameters={"N": 6}):
    print(f"{result.name}: {result.message}")
# --8<-- [end:model]

# --8<-- [start:optimum]
requirement = 'Rmin=? [ C ]; P>=0.8 [ F<=12 "delivered" ] & C>=0.98'
for best in psyco.optimum("courier.prism", requirement, parameters={"N": 6}):
    print(best.text, best.smallest, best.largest)
# --8<-- [end:optimum]

# --8<-- [start:learn]
table = psyco.Table(curriculum=0)  # the constraint applies in full from the first episode
run = psyco.start(
    "courier.prism", requirement, "courier", parameters={"N": 6}, episodes=4_000, learner=table, overwrite=True
)
certificate = run.certificate
print(certificate.verdict.name, "after", certificate.episodes, "episodes, mean time", certificate.mean_return)
# --8<-- [end:learn]

# --8<-- [start:exact]
exact = psyco.exact(run, trust=["courier.prism"])
print(exact.verdict.name, exact.value, "on", exact.nodes, "states")
# --8<-- [end:exact]

# --8<-- [start:chain]
Path("chain.prism").write_text("""
dtmc
module m
  x : [0..3] init 0;
  [] x=0 -> 0.25 : (x'=1) + 0.75 : (x'=2);
  [] x=1 -> 0.5 : (x'=0) + 0.5 : (x'=3);
  [] x>1 -> true;
endmodule
""")
(answer,) = psyco.verify("chain.prism", requirement="P=? [ F x=3 ]", max_episodes=2_000).answers
print(f"{answer.mean:.3f} in [{answer.lower:.3f}, {answer.upper:.3f}], exactly 1/7 = {1 / 7:.3f}")
# --8<-- [end:chain]

# --8<-- [start:picture]
import matplotlib.pyplot as plt

finding, truth = certificate.findings[0], exact.value.probabilities[0]
figure, axis = plt.subplots(figsize=(7, 1.8), layout="constrained")
axis.plot([finding.lower, finding.upper], [0, 0], linewidth=8, alpha=0.4, label="confidence interval")
axis.plot(finding.share, 0, "ko", label="satisfied share")
axis.plot(truth, 0, "r|", markersize=24, label="exact probability")
axis.axvline(0.8, linestyle="--", color="black", label="required")
axis.set(yticks=[], xlim=(0.7, 1.0), xlabel="probability that the parcel is delivered")
axis.legend(ncols=4, fontsize=8, loc="upper center", bbox_to_anchor=(0.5, 1.35))
figure.savefig("model.png", dpi=100)
# --8<-- [end:picture]
