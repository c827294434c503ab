"""ONNX export: the exported network acts as the policy does."""

from pathlib import Path

import numpy as np
import pytest

import psyco
from psyco._src.domain.actions import Actions, Continuous, Discrete, MultiBinary, MultiDiscrete
from psyco._src.policy.file import Policy
from psyco._src.policy.network import Network
from psyco._src.policy.onnx import to_onnx

pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")


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
@pytest.mark.parametrize("scaled", [False, True])
def test_onnxruntime_gives_the_policys_actions(
    actions: Actions, bias: str, scaled: bool, tmp_path: Path
) -> None:
    shift, scale = ((1.0, -200.0, 0.0), (3.0, 40.0, 0.01)) if scaled else ((), ())
    network = Network(3, actions.outputs, 16, bias, shift, scale)  # type: ignore[arg-type]
    theta = np.random.default_rng(0).normal(size=network.size).astype(np.float32)
    policy = Policy(theta, network, actions, "somewhere", {})
    assert psyco.export_onnx(policy, tmp_path / "p.onnx") <= 1e-6
    session = onnxruntime.InferenceSession(str(tmp_path / "p.onnx"))
    x = np.random.default_rng(1).normal(size=(100, 3)).astype(np.float32)
    x = (x * scale + shift).astype(np.float32) if scaled else x
    theirs, ours = session.run(None, {"observation": x})[0], policy(x)
    assert theirs.shape == ours.shape
    size = 20.0 if isinstance(actions, Continuous) else 1.0
    np.testing.assert_allclose(theirs / size, ours / size, atol=1e-6)


def test_the_same_policy_gives_the_same_file() -> None:
    network = Network(2, 2)
    policy = Policy(np.ones(network.size, np.float32), network, Discrete(2), "somewhere", {})
    assert to_onnx(policy) == to_onnx(policy)
    assert policy.digest.encode() in to_onnx(policy)
