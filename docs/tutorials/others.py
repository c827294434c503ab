"""Tutorial 4: verify external policies: a function, a controller with a memory, ONNX, Stable-Baselines3."""

# ruff: noqa: E402
# --8<-- [start:function]
import psyco

domain = psyco.make("CartPole-v1", horizon=200)
requirement = "P>=0.8 [ G (abs(obs[0]) <= 1 & !terminated) ] & C>=0.95"


def lean(observation):
    """Push in the direction in which the pole leans."""
    return int(observation[2] + observation[3] > 0)


certificates = {"a function": psyco.verify(lean, domain, requirement, version="lean 1")}
print(certificates["a function"])
# --8<-- [end:function]


# --8<-- [start:memory]
class Steady:
    """Push against lean and drift; the running sum of positions is a memory, so the policy is a class."""

    def reset(self):
        """Reset the memory at the start of an episode."""
        self.drift = 0.0

    def act(self, observation):
        """Update the memory and return the action."""
        self.drift = 0.9 * self.drift + observation[0]
        return int(observation[2] + 0.4 * observation[3] + 0.05 * self.drift + 0.1 * observation[1] > 0)


certificates["a memory"] = psyco.verify(Steady, domain, requirement, version="steady 1")
# --8<-- [end:memory]

# --8<-- [start:onnx]
learned = psyco.synthesize(
    domain,
    requirement,
    learner="safe-es",
    episodes=1_000,
    settings=psyco.Settings(selection_episodes=50, verify_every=0),
)
psyco.export(learned.policy, "cartpole.onnx")
certificates["ONNX"] = psyco.verify("cartpole.onnx", domain, requirement)
# --8<-- [end:onnx]

# --8<-- [start:sb3]
from stable_baselines3 import PPO

model = PPO("MlpPolicy", "CartPole-v1", n_steps=256, seed=0, device="cpu").learn(8_000)
certificates["Stable-Baselines3"] = psyco.verify(model, domain, requirement)
# --8<-- [end:sb3]

# --8<-- [start:picture]
import matplotlib.pyplot as plt

figure, axis = plt.subplots(figsize=(7, 2.2), layout="constrained")
for row, (name, certificate) in enumerate(certificates.items()):
    finding = certificate.findings[0]
    axis.plot([finding.lower, finding.upper], [row, row], linewidth=6, alpha=0.5)
    axis.plot(finding.share, row, "ko")
    print(f"{name}: {certificate.verdict.name} after {finding.episodes} episodes, {certificate.return_summary}")
axis.axvline(0.8, linestyle="--", color="black")
axis.set(xlim=(0, 1), xlabel="probability that an episode satisfies the formula", yticks=range(4))
axis.set_yticklabels(list(certificates))
figure.savefig("others.png", dpi=100)
# --8<-- [end:picture]
