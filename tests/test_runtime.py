"""A policy and a monitor where there is no JAX: nothing heavy is loaded, and the numbers are those of compiled code."""

import dataclasses
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import psyco
from psyco import Continuous, Discrete, MultiBinary, MultiDiscrete, runtime
from psyco._src.policies.network import Network
from psyco._src.policies.serialization import Policy

HEAVY = ("jax", "scipy", "gymnasium", "matplotlib", "lark", "safetensors")
KINDS = [
    Continuous((-2.0, 0.0), (2.0, 5.0)),
    Discrete(4),
    MultiDiscrete((3, 2, 2)),
    MultiBinary(3),
]


@pytest.mark.slow
def test_importing_it_loads_nothing_heavy():
    code = f"import sys, psyco.runtime; print([name for name in {HEAVY} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.slow
def test_acting_and_watching_load_no_jax(tmp_path):
    a_policy(KINDS[0], "learned").save(tmp_path / "policy.safetensors")
    (tmp_path / "safe.props").write_text("P>=0.85 [ G x < 1 ]")
    code = f"""
import sys, psyco.runtime as runtime
policy = runtime.load_policy({str(tmp_path / "policy.safetensors")!r})
status = runtime.Monitor({str(tmp_path / "safe.props")!r}).update({{"x": policy([0.0] * 5)[0] + 9}})
print(status.outlook.name, [name for name in {HEAVY[:4]} if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "VIOLATED []"


def a_policy(actions, bias, scaled=True, inputs=5, hidden=32):
    network = Network(inputs, actions.outputs, hidden=hidden, bias=bias)
    if scaled:
        rows = np.linspace(-1, 1, inputs).tolist(), np.linspace(0.5, 2, inputs).tolist()
        network = dataclasses.replace(network, shift=tuple(rows[0]), scale=tuple(rows[1]))
    theta = np.asarray(network.init(jax.random.key(0)))
    return Policy(theta, network, actions, "nowhere", {})


@pytest.mark.parametrize(("scaled", "hidden"), [(False, 32), (True, 32), (True, (40, 16, 8))])
@pytest.mark.parametrize("bias", ["one", "learned"])
@pytest.mark.parametrize("actions", KINDS, ids=lambda kind: type(kind).__name__)
def test_actions_are_those_of_the_compiled_network(tmp_path, actions, bias, scaled, hidden):
    a_policy(actions, bias, scaled, hidden=hidden).save(tmp_path / "policy.safetensors")
    policy = runtime.load_policy(tmp_path / "policy.safetensors")
    x = np.random.default_rng(0).normal(size=(500, 5)).astype(np.float32)
    compiled = jax.jit(jax.vmap(lambda row: policy.network.act(actions, jnp.asarray(policy.theta), row)))(x)
    one_by_one = np.stack([policy(row) for row in x])
    np.testing.assert_allclose(one_by_one, compiled, rtol=0, atol=1e-6)
    np.testing.assert_array_equal(one_by_one, policy(x))  # a row does not see its neighbours
    assert one_by_one.dtype == compiled.dtype and policy(x[0]).shape == compiled[0].shape


def test_its_names_are_those_of_the_package():
    public = [name for name in vars(runtime) if not name.startswith("_")]
    assert "Monitor" in public and all(getattr(psyco, name) is getattr(runtime, name) for name in public)
