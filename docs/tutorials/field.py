"""Tutorial 6: out in the field: export, monitor, watch. Everything goes into the folder `field`."""

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
windy = psyco.make("particle-dance", max_speed=0.15)
watcher = psyco.FieldTest(run.certificate, false_alarm_every=10_000)
seen, alarm = [], None
for number in range(3_000):
    where = None if number < 300 else windy  # from then on the particle is faster than it was
    path = psyco.record(run, where, seed=7, episode=number)
    kept = psyco.check_path("G (distance >= 0.1 | collisions <= 1)", path).satisfied
    seen.append(kept)
    alarm = watcher.update(kept)
    if alarm is not None:
        print(alarm)
        break
# --8<-- [end:watch]

# --8<-- [start:picture]
import matplotlib.pyplot as plt

kept = np.array(seen, float)
window = np.convolve(kept, np.ones(50) / 50, mode="valid")
figure, axis = plt.subplots(figsize=(7, 2.6), layout="constrained")
axis.plot(np.arange(len(window)) + 49, window, label="share kept, last 50 episodes")
axis.axhline(0.85, linestyle="--", color="black", label="promised")
axis.axvline(300, color="grey", label="the world changes")
axis.axvline(len(seen), color="red", label="alarm")
axis.set(xlabel="episodes in the field", ylim=(0, 1.02))
axis.legend(fontsize=8, loc="lower left")
figure.savefig("field/watch.png", dpi=100)
# --8<-- [end:picture]
