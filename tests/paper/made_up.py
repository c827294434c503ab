"""Synthetic runs with known episodes."""

import numpy as np

from psyco._src.envs.registry import make
from psyco._src.learners.metrics import Metrics
from psyco._src.paper.curves import Results
from psyco._src.paper.experiments import POPULATION
from psyco._src.paper.repetitions import Repetition
from psyco._src.policies.network import network_for
from psyco._src.policies.serialization import policy_for


def episodes_of(rng, generations, *, ret=-25.0, share=0.855, violating_gain=5.0, cost=3.0):
    """Return random episodes `[G, N]`: return, satisfied, cost."""
    satisfied = rng.random((generations, POPULATION)) < share
    returns = ret + rng.normal(0, 1, satisfied.shape) + np.where(satisfied, 0.0, violating_gain)
    return returns, satisfied, np.where(satisfied, 0.0, cost + rng.normal(0, 0.1, satisfied.shape))


def metrics_of(returns, satisfied, cost, *, c_sat=0.99, verified=0.9, every=10):
    """Return the metrics of these episodes."""
    rows = len(returns)
    columns = {
        "episodes": np.arange(1, rows + 1) * POPULATION,
        "return": returns.mean(axis=1),
        "length": np.full(rows, 50.0),
        "satisfied": satisfied.mean(axis=1),
        "cost": cost.mean(axis=1),
        "c_sat": np.broadcast_to(c_sat, rows).astype(float),
    }
    for name, values in (("return", returns), ("cost", cost)):
        for kind, wanted in (("satisfying", satisfied), ("violating", ~satisfied)):
            columns[f"{name}_{kind}"] = np.ma.masked_array(values, ~wanted).mean(axis=1).filled(np.nan)
    at = np.arange(rows) % every == every - 1
    columns["verified_confidence"] = np.where(at, np.linspace(*np.broadcast_to(verified, 2), rows), np.nan)
    columns["verdict"] = np.where(at, "SATISFIED", "")
    return Metrics(columns)


def run_of(experiment, seed, **shape):
    """Return a run; `shape` describes its episodes, `c_sat` and `verified` (from, to) its confidence."""
    metrics = {k: shape.pop(k) for k in ("c_sat", "verified") if k in shape}
    rng = np.random.default_rng(seed)
    made = metrics_of(*episodes_of(rng, experiment.episodes // POPULATION, **shape), **metrics)
    domain = make(experiment.domain)
    network = network_for(domain)
    return Repetition(made, policy_for(domain, network, np.zeros(network.size, np.float32)), 1.0)


def results_of(experiment, **shapes):
    """Return results in which each variant has the given shape; keys are names without " = "."""
    return Results(
        experiment,
        {
            label: [run_of(experiment, seed, **shapes.get(label.replace(" = ", ""), {})) for seed in experiment.seeds]
            for label in experiment.variants
        },
    )
