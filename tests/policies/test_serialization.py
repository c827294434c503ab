"""The policy network is the paper's equation; its file is exact and refuses what does not fit."""

import json
import zipfile

import jax
import numpy as np
import pytest

import psyco
from psyco._src.policies.network import Network, network_for
from psyco._src.policies.serialization import Policy, policy_for


@pytest.mark.parametrize("bias", ["one", "learned"])
def test_the_network_is_the_papers_equation(bias):
    network = Network(inputs=8, outputs=2, hidden=32, bias=bias)
    theta = np.asarray(network.init(jax.random.key(0)), np.float64)
    assert theta.size == network.size == (320 if bias == "one" else 354)
    w1, w2 = theta[:256].reshape(8, 32), theta[256:320].reshape(2, 32).T
    b1, b2 = (theta[320:352], theta[352:]) if bias == "learned" else (1.0, 1.0)
    for x in np.random.default_rng(0).normal(size=(5, 8)):
        y = np.tanh(np.maximum(x @ w1 + b1, 0) @ w2 + b2)
        np.testing.assert_allclose(network(theta.astype(np.float32), x.astype(np.float32)), y, atol=1e-5)


def test_continuous_actions_fill_the_range_and_discrete_ones_are_the_largest_output():
    dance, run = psyco.make("particle-dance"), psyco.make("obstacle-run")
    y = np.array([[-1.0, 0.0], [1.0, 0.5]], np.float32)
    np.testing.assert_allclose(dance.actions.decode(y), [[-0.1, 0.0], [0.1, 0.05]], atol=1e-7)
    assert run.actions.decode(np.array([0.1, 0.3, 0.2, -1, 0])) == 1


def a_policy(name="particle-dance", **parameters):
    domain = psyco.make(name, **parameters)
    network = network_for(domain)
    return policy_for(domain, network, network.init(jax.random.key(1))), domain


def test_a_file_gives_back_the_same_policy(tmp_path):
    policy, _ = a_policy(horizon=30)
    policy.save(tmp_path / "p")
    policy.save(tmp_path / "q")
    assert (tmp_path / "p").read_bytes() == (tmp_path / "q").read_bytes()
    again = psyco.load_policy(tmp_path / "p")
    assert (again.theta == policy.theta).all() and again.digest == policy.digest
    assert (again.network, again.actions, again.domain) == (policy.network, policy.actions, policy.domain)
    assert again.parameters["horizon"] == 30
    x = np.random.default_rng(0).normal(size=(4, 8))
    assert (again(x) == policy(x)).all() and again(x).shape == (4, 2)


def test_a_policy_takes_what_a_discrete_environment_gives(tmp_path):
    mlp, table = Network(5, 3, 4, "learned"), Network(5, 3, (), "learned", one_hot=(2, 3))
    for network, raw, code in ((mlp, 3, [0, 0, 0, 1, 0]), (table, (1, 0), [0, 1, 1, 0, 0])):
        theta = np.random.default_rng(0).normal(size=network.size).astype(np.float32)
        Policy(theta, network, psyco.Discrete(3), "somewhere", {}).save(tmp_path / "policy")
        policy = psyco.load_policy(tmp_path / "policy")
        assert policy.network == network and policy(raw) == policy(np.array(raw)) == policy(code)
        with pytest.raises(
            psyco.RunError, match=r"takes numbers from 0 to below \((5,|2, 3)\), the observation is \[.*5\]"
        ):
            policy(np.array(raw) * 0 + 5)
    with pytest.raises(psyco.RunError, match="takes 5 numbers"):
        policy(0.5)


def test_a_policy_refuses_another_domain():
    policy, domain = a_policy()
    policy.check(domain)
    with pytest.raises(psyco.RunError, match=r"made for particle-dance.*obstacle-run has 4 observations"):
        policy.check(psyco.make("obstacle-run"))
    with pytest.raises(psyco.RunError, match="takes 8 numbers"):
        policy(np.zeros(5))


def damage(data: bytes, how: str) -> bytes:
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    about = json.loads(header["__metadata__"]["psyco"])
    if how == "short":
        return data[:-4]
    if how == "empty":
        return b""
    if how == "text":
        return b"not a policy at all, but a longer text"
    if how == "nan":
        return data[:-4] + np.float32(np.nan).tobytes()
    if how == "dtype":
        header["theta"]["dtype"] = "I32"
    if how == "hidden":
        about["network"]["hidden"] = 32.0
    if how == "range":
        about["actions"] |= {"low": [1.0, 1.0], "high": [0.0, 0.0]}
    if how == "deep":
        about["actions"]["low"] = {"a": "b"}
    if how == "shape":
        about["network"]["hidden"] = 31
    if how == "format":
        about["format"] = "psyco-policy-99"
    if how == "actions":
        about["actions"]["kind"] = "os.system"
    header["__metadata__"]["psyco"] = json.dumps(about)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + data[8 + size :]


@pytest.mark.parametrize(
    "how", ["short", "empty", "text", "nan", "shape", "format", "actions", "dtype", "hidden", "range", "deep"]
)
def test_a_damaged_file_is_refused(tmp_path, how):
    policy, _ = a_policy()
    (tmp_path / "p").write_bytes(damage(policy.to_bytes(), how))
    with pytest.raises(psyco.RunError, match=r"damaged|format|whole number"):
        psyco.load_policy(tmp_path / "p")


@pytest.mark.parametrize(("at", "damage"), [(6, b"\x63"), (8, b"\x00\x08")], ids=["version", "name"])
def test_an_archive_that_is_damaged_is_refused(tmp_path, at, damage):
    """In its directory: a version that there is not yet, a name that is not the UTF-8 it is said to be."""
    with zipfile.ZipFile(tmp_path / "p", "w") as archive:
        archive.writestr("\u00fc", "x")
    data = bytearray((tmp_path / "p").read_bytes())
    entry = data.rindex(b"PK\x01\x02")
    data[entry + at : entry + at + len(damage)] = damage
    data[entry + 46] = 0xFF
    (tmp_path / "p").write_bytes(data)
    with pytest.raises(psyco.RunError, match="not a PSyCo policy file"):
        psyco.load_policy(tmp_path / "p")


def test_a_missing_file_is_said_to_be_missing(tmp_path):
    with pytest.raises(psyco.RunError, match="there is no file"):
        psyco.load_policy(tmp_path / "nothing")
