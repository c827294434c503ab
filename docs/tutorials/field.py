"""Tutorial 6: deployment: export, monitor, field test. All files are written to the folder `field`."""

# ruff: noqa: E402
# --8<-- [start:certify]
import numpy as np

import psyco
from psyco import runtime

requirement = "P>=0.85 [ G (distance >= 0.1 | collisions <= 1) ] & C>=0.98"
run = psyco.start("particle-dance", requirement, "field", seed=0, overwrite=True)
print(run.certificate.verdict.name)
# --8<-- [end:certify]

# --8<-- [start:export]
print(psyco.export_c(run, "field/c"))
# --8<-- [end:export]

# --8<-- [start:run]
policy = runtime.load_policy("field/policy.safetensors")
print(policy(np.zeros(policy.network.inputs, np.float32)))
# --8<-- [end:run]

# --8<-- [start:monitor]
monitor = runtime.Monitor(requirement, horizon=50, counters=["collisions"])
episode = psyco.record(run, seed=3)
status = monitor.start()
for distance, collisions in zip(episode["distance"], episode["collisions"], strict=True):
    status = monitor.update({"distance": float(distance), "collisions": float(collisions)})
    if status.over:
        break
print(status)
# --8<-- [end:monitor]

# --8<-- [start:watch]
fast = psyco.make("particle-dance", max_speed=0.15)
field_test = psyco.FieldTest(run.certificate, false_alarm_every=10_000)
outcomes = []
for number in range(3_000):
    domain = None if number < 300 else fast  # the particle becomes faster; None: the domain of the run
    path = psyco.record(run, domain, seed=7, episode=number)
    satisfied = psyco.check_path("G (distance >= 0.1 | collisions <= 1)", path).satisfied
    outcomes.append(satisfied)
    alarm = field_test.update(satisfied)
    if alarm is not None:
        print(alarm)
        break
# --8<-- [end:watch]

# --8<-- [start:picture]
import matplotlib.pyplot as plt

window = np.convolve(np.array(outcomes, float), np.ones(50) / 50, mode="valid")
figure, axis = plt.subplots(figsize=(7, 2.6), layout="constrained")
axis.plot(np.arange(len(window)) + 49, window, label="satisfied share of the last 50 episodes")
axis.axhline(0.85, linestyle="--", color="black", label="required")
axis.axvline(300, color="grey", label="change of the environment")
axis.axvline(len(outcomes), color="red", label="alarm")
axis.set(xlabel="episodes in the field", ylim=(0, 1.02))
axis.legend(fontsize=8, loc="lower left")
figure.savefig("field/watch.png", dpi=100)
# --8<-- [end:picture]
