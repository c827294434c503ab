"""Networks: their equation, written out, and what may be asked of them."""

import dataclasses
from itertools import pairwise

import jax
import numpy as np
import pytest

import psyco
from psyco import Discrete
from psyco._src.policies.network import Network
from psyco._src.policies.serialization import Policy, load_policy


def by_definition(network, theta, x):
    """The equation with matrices cut out of the parameters by hand, in float64."""
    theta, widths = theta.astype(np.float64), [network.inputs, *network.layers, network.outputs]
    weights, biases, at = [], [], 0
    for k, (n, m) in enumerate(pairwise(widths)):
        block = theta[at : at + n * m]
        weights.append(block.reshape(m, n) if k else block.reshape(n, m).T)
        at += n * m
    for m in widths[1:]:
        biases.append(theta[at : at + m] if network.bias == "learned" else np.ones(m))
        at += m
    for weight, bias in zip(weights[:-1], biases[:-1], strict=True):
        x = np.maximum(weight @ x + bias, 0.0)
    return weights[-1] @ x + biases[-1]


@pytest.mark.parametrize("bias", ["one", "learned"])
@pytest.mark.parametrize("hidden", [7, (64, 64), (3, 40, 5)])
def test_scores_are_those_of_the_equation_compiled_and_in_numpy(hidden, bias):
    network = Network(4, 3, hidden, bias)
    rng = np.random.default_rng(0)
    theta = rng.normal(size=(5, network.size)).astype(np.float32) / 4
    x = rng.normal(size=(5, 4)).astype(np.float32)
    wanted = [by_definition(network, *row) for row in zip(theta, x, strict=True)]
    np.testing.assert_allclose(jax.jit(jax.vmap(network.scores))(theta, x), wanted, rtol=0, atol=2e-5)
    ours = network.numpy_scores(theta)(x)
    np.testing.assert_allclose(ours, wanted, rtol=0, atol=2e-5)
    alone = [network.numpy_scores(t[None])(row[None])[0] for t, row in zip(theta, x, strict=True)]
    np.testing.assert_array_equal(ours, alone)  # a row does not see its neighbours


def test_a_table_has_a_row_of_scores_for_each_combination_of_one_hot_codes():
    network = Network(6, 2, (), "learned", one_hot=(3, 1, 2))
    theta = np.random.default_rng(0).normal(size=network.size).astype(np.float32)
    x = np.array([[*np.eye(3)[i], 1, *np.eye(2)[j]] for i in range(3) for j in range(2)], np.float32)
    wanted = theta[:12].reshape(6, 2) + theta[12:]
    np.testing.assert_array_equal(network.numpy_scores(theta[None])(x), wanted)
    np.testing.assert_allclose(jax.vmap(network.scores, (None, 0))(theta, x), wanted, rtol=1e-6)
    for wrong in ((3, 2), (3, 1, 2.0), (6, 0)):
        with pytest.raises(psyco.RunError, match=r"one_hot must be|one-hot codes of sizes"):
            Network(6, 2, (), "learned", one_hot=wrong)


def test_first_weights_stay_within_their_fan_in():
    network = Network(4, 2, (100, 25), "learned")
    parts = network.unflatten(np.asarray(network.init(jax.random.key(0))))
    assert [part.shape for part in parts] == [(4, 100), (25, 100), (2, 25), (100,), (25,), (2,)]
    for part, fan_in in zip(parts, [4, 100, 25] * 2, strict=True):
        assert 0.7 < np.abs(part).max() * np.sqrt(fan_in) <= 1 or part.size < 3


def test_one_layer_is_written_as_a_number_and_several_as_a_list(tmp_path):
    one = Network(4, 2, (8,))
    assert one == Network(4, 2, 8) and dataclasses.asdict(one)["hidden"] == 8
    for network in (one, Network(4, 2, [8, np.int64(3)])):
        policy = Policy(np.ones(network.size, np.float32), network, Discrete(2), "nowhere", {})
        policy.save(tmp_path / "p")
        again = load_policy(tmp_path / "p")
        assert again.network == network and again.digest == policy.digest
    assert "4 -> 8 -> 3 -> 2" in repr(policy) and b'\\"hidden\\": [8, 3]' in policy.to_bytes()


@pytest.mark.parametrize("hidden", [0, True, 2.5, "64", (64, 0), (64, "a"), ((64,),), None])
def test_other_units_are_refused(hidden):
    with pytest.raises(psyco.RunError, match=r"hidden must be a whole number of at least 1, or .* as in 64,64"):
        Network(4, 2, hidden)
    with pytest.raises(psyco.RunError, match="hidden names no layer"):
        Network(4, 2, ())
    with pytest.raises(psyco.RunError, match="at most 4,096 units, got 99,999,999"):
        Network(4, 2, (8, 99_999_999))


def test_the_observation_of_a_table_may_be_the_number_of_a_row() -> None:
    codes, numbers = Network(5, 3, (), "learned", one_hot=(5,)), Network(1, 3, (), "learned", one_hot=(5,))
    assert (codes.size, codes.indexed, numbers.size, numbers.indexed) == (18, False, 18, True)
    theta = np.random.default_rng(0).normal(size=(1, 18)).astype(np.float32)
    rows = np.arange(5, dtype=np.float32)[:, None]
    expected = codes.numpy_scores(theta)(np.eye(5, dtype=np.float32))
    np.testing.assert_array_equal(numbers.numpy_scores(theta)(rows), expected)
    compiled = jax.vmap(lambda x: numbers.scores(jax.device_put(theta[0]), x))(jax.device_put(rows))
    np.testing.assert_allclose(compiled, expected, rtol=1e-6)
