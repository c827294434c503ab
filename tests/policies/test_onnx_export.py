"""ONNX export: the exported network acts as the policy does."""

import dataclasses
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import psyco
from psyco._src.envs.actions import Actions, Continuous, Discrete, MultiBinary, MultiDiscrete
from psyco._src.policies.network import Network
from psyco._src.policies.onnx_export import to_onnx
from psyco._src.policies.serialization import Policy

pytestmark = pytest.mark.extra("onnx", "onnxruntime")


@pytest.mark.parametrize("bias", ["one", "learned"])
@pytest.mark.parametrize(
    "actions",
    [
        Continuous((-1.0, 0.0, -5.0), (1.0, 0.5, 20.0)),
        Discrete(4),
        MultiDiscrete((2, 3, 4)),
        MultiBinary(5),
    ],
)
@pytest.mark.parametrize(("scaled", "hidden"), [(False, 16), (True, 16), (True, (12, 8))])
def test_onnxruntime_gives_the_policys_actions(
    actions: Actions, bias: str, scaled: bool, hidden: Any, tmp_path: Path
) -> None:
    shift, scale = ((1.0, -200.0, 0.0), (3.0, 40.0, 0.01)) if scaled else ((), ())
    network = Network(3, actions.outputs, hidden, bias, shift, scale)  # type: ignore[arg-type]
    theta = np.random.default_rng(0).normal(size=network.size).astype(np.float32) / len(network.layers)
    policy = Policy(theta, network, actions, "somewhere", {})
    assert psyco.export(policy, tmp_path / "p.onnx") <= 20e-6
    import onnxruntime

    session = onnxruntime.InferenceSession(str(tmp_path / "p.onnx"))
    x = np.random.default_rng(1).normal(size=(100, 3)).astype(np.float32)
    x = (x * scale + shift).astype(np.float32) if scaled else x
    theirs, ours = session.run(None, {"observation": x})[0], policy(x)
    assert theirs.shape == ours.shape
    size = 20.0 if isinstance(actions, Continuous) else 1.0
    np.testing.assert_allclose(theirs / size, ours / size, atol=1e-6)


def test_onnxruntime_reads_a_table(tmp_path: Path) -> None:
    network = Network(7, 3, (), "learned", one_hot=(4, 1, 2))
    theta = np.random.default_rng(0).normal(size=network.size).astype(np.float32)
    policy = Policy(theta, network, Discrete(3), "somewhere", {})
    assert psyco.export(policy, tmp_path / "p.onnx") <= 20e-6
    import onnxruntime

    session = onnxruntime.InferenceSession(str(tmp_path / "p.onnx"))
    x = np.concatenate([np.repeat(np.eye(4), 2, axis=0), np.ones((8, 1)), np.tile(np.eye(2), (4, 1))], axis=1)
    table, bias = network.unflatten(theta)
    found = session.run(None, {"observation": x.astype(np.float32)})[0]
    np.testing.assert_array_equal(found, (table + bias).argmax(axis=1))


@pytest.mark.extra("onnxruntime")
def test_a_file_that_also_looks_like_another_format_is_read_as_onnx(tmp_path: Path) -> None:
    """Bytes 4 to 8 are what ONNX Runtime knows its own format by; nothing has looked through what that may refer to."""
    policy = random_policy(Discrete(3))
    (tmp_path / "p.onnx").write_bytes(b"\x12\x06by" + b"ORTM" + to_onnx(policy))  # who produced it, said twice
    decide = psyco.open_policy(str(tmp_path / "p.onnx")).load()
    x = np.ones((1, 5), np.float32)
    assert list(decide(x, x, policy.actions)) == list(policy(x))


def test_the_same_policy_gives_the_same_file() -> None:
    network = Network(2, 2)
    policy = Policy(np.ones(network.size, np.float32), network, Discrete(2), "somewhere", {})
    assert to_onnx(policy) == to_onnx(policy)
    assert policy.digest.encode() in to_onnx(policy)


def random_policy(actions: Actions, weight: float = 1.0, inputs: int = 5, hidden: Any = 32) -> Policy:
    network = Network(inputs, actions.outputs, hidden)
    theta = weight * np.random.default_rng(0).normal(size=network.size)
    return Policy(theta.astype(np.float32), network, actions, "somewhere", {})


@pytest.mark.parametrize("actions", [Continuous((-1e5, 2.0), (1e5, 2.001)), Discrete(3), MultiBinary(3)])
@pytest.mark.parametrize("weight", [0.1, 5.0, 1000.0])
@pytest.mark.parametrize("hidden", [32, 512, (64, 64)])
def test_rounding_is_no_difference(actions: Actions, weight: float, hidden: Any, tmp_path: Path) -> None:
    """Large weights, long sums and wide ranges all round more; a bound of 1e-6 refused some of these."""
    psyco.export(random_policy(actions, weight, 40, hidden), tmp_path / "p.onnx")
    assert (tmp_path / "p.onnx").exists()


def export_another(policy: Policy, theta: np.ndarray, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Export a policy, but with these parameters in the file."""
    other = dataclasses.replace(policy, theta=theta.astype(np.float32))
    monkeypatch.setattr("psyco._src.policies.onnx_export.to_onnx", lambda _: to_onnx(other))
    psyco.export(policy, path)


@pytest.mark.parametrize(
    ("actions", "weight"),
    [
        (Continuous((-1e5, 2.0), (1e5, 2.001)), 0.1),
        (Continuous((-1e5, 2.0), (1e5, 2.001)), 5.0),
        (Discrete(3), 1.0),
        (MultiBinary(3), 5.0),
    ],
)
def test_another_network_is_refused(
    actions: Actions, weight: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = random_policy(actions, weight)
    theta = policy.theta.copy()
    theta[:80] *= 1.01
    if not isinstance(actions, Continuous):  # one wrong choice in 256 is enough
        x = np.random.default_rng(0).normal(size=(256, 5))
        assert 1 <= (dataclasses.replace(policy, theta=theta)(x) != policy(x)).sum() <= 2
    with pytest.raises(psyco.RunError, match=r"differs .* nothing was written"):
        export_another(policy, theta, tmp_path / "p.onnx", monkeypatch)
    assert not (tmp_path / "p.onnx").exists()


@pytest.mark.parametrize(
    ("apart", "outcome"), [(1e-7, nullcontext()), (1e-3, pytest.raises(psyco.RunError, match="differs"))]
)
def test_choices_may_differ_only_where_their_scores_are_equal_up_to_rounding(
    apart: float, outcome: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = random_policy(Discrete(2), 0.1)
    _, w2 = policy.network.unflatten(policy.theta)  # views into theta
    w2[1] = w2[0] * (1 + apart)
    swapped = policy.theta.copy()
    policy.network.unflatten(swapped)[1][:] = w2[::-1]
    with outcome:
        export_another(policy, swapped, tmp_path / "p.onnx", monkeypatch)


def test_a_table_over_numbers_of_states_acts_alike() -> None:
    import onnxruntime

    network = Network(1, 3, (), "learned", one_hot=(5,))
    theta = np.random.default_rng(0).normal(size=network.size).astype(np.float32)
    policy = Policy(theta, network, psyco.Discrete(3), "model.prism", {})
    numbers = np.arange(5, dtype=np.float32)[:, None]
    session = onnxruntime.InferenceSession(to_onnx(policy))
    np.testing.assert_array_equal(session.run(None, {"observation": numbers})[0], policy(numbers))
