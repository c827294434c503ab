"""A policy as an ONNX file, with its observation scaling and its action range inside."""

from __future__ import annotations

from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from psyco._src.domain.actions import Continuous, Discrete, MultiBinary, MultiDiscrete
from psyco._src.errors import RunError
from psyco._src.policy.file import Policy
from psyco.version import __version__

OPSET = 17
TOLERANCE = 1e-6  # of the check, relative to the size of an action


def to_onnx(policy: Policy) -> bytes:
    """The policy as ONNX: `observation` float32 `[n, inputs]` -> `action`, float32 `[n, size]` or int64."""
    try:
        from onnx import TensorProto, checker, helper, numpy_helper
    except ImportError:
        raise RunError('exporting to ONNX needs it installed: pip install "psyco[onnx]"') from None
    nodes: list[Any] = []
    constants: list[Any] = []

    def constant(name: str, value: Any, kind: Any = np.float32) -> str:
        constants.append(numpy_helper.from_array(np.asarray(value, kind), name))
        return name

    def node(operator: str, *inputs: str, to: str, **attributes: Any) -> str:
        nodes.append(helper.make_node(operator, inputs, [to], **attributes))
        return to

    network, actions = policy.network, policy.actions
    w1, w2, *biases = network.parts(policy.theta)
    b1, b2 = biases or (np.ones(network.hidden), np.ones(network.outputs))
    x = "observation"
    if network.scale:
        x = node("Sub", x, constant("shift", network.shift), to="shifted")
        x = node("Div", x, constant("scale", network.scale), to="scaled")
    hidden = node("Add", node("MatMul", x, constant("w1", w1), to="xw1"), constant("b1", b1), to="pre1")
    hidden = node("Relu", hidden, to="hidden")
    y = node("Add", node("MatMul", hidden, constant("w2", w2.T), to="hw2"), constant("b2", b2), to="pre2")
    y = y if actions.ranked else node("Tanh", y, to="y")
    match actions:
        case Continuous(low, high):
            half = (np.array(high, np.float32) - np.array(low, np.float32)) * np.float32(0.5)
            y = node("Mul", node("Add", y, constant("one", 1), to="up"), constant("half", half), to="wide")
            node("Add", y, constant("low", low), to="action")
        case Discrete():
            node("ArgMax", y, to="action", axis=1, keepdims=0)
        case MultiDiscrete(n):
            parts = [
                node(
                    "ArgMax",
                    node("Slice", y, constant(f"from{i}", [end - k], np.int64), constant(f"to{i}", [end], np.int64),
                         constant(f"axis{i}", [1], np.int64), to=f"scores{i}"),
                    to=f"choice{i}", axis=1, keepdims=1,
                )
                for i, (k, end) in enumerate(zip(n, accumulate(n), strict=True))
            ]  # fmt: skip
            node("Concat", *parts, to="action", axis=1)
        case MultiBinary():
            on = node("Greater", y, constant("zero", 0), to="on")
            nodes.append(helper.make_node("Cast", [on], ["action"], to=TensorProto.INT64))
    kind = TensorProto.FLOAT if isinstance(actions, Continuous) else TensorProto.INT64
    shape = ["n"] if actions.size is None else ["n", actions.size]
    graph = helper.make_graph(
        nodes,
        "policy",
        [helper.make_tensor_value_info("observation", TensorProto.FLOAT, ["n", network.inputs])],
        [helper.make_tensor_value_info("action", kind, shape)],
        constants,
        doc_string=f"A policy for {policy.domain}, sha256:{policy.digest}",
    )
    model = helper.make_model(
        graph,
        producer_name="psyco",
        producer_version=__version__,
        opset_imports=[helper.make_opsetid("", OPSET)],
    )
    model.ir_version = 8  # that of opset 17, so that older runtimes read it too
    checker.check_model(model, full_check=True)
    return model.SerializeToString(deterministic=True)


def export_onnx(policy: Policy, path: str | Path) -> float:
    """Write the ONNX file, run it beside the policy, and return the largest difference between their actions."""
    try:
        import onnxruntime
    except ImportError:
        raise RunError('checking an exported policy needs ONNX Runtime: pip install "psyco[onnx]"') from None
    content = to_onnx(policy)
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    network = policy.network
    x = np.random.default_rng(0).normal(size=(256, network.inputs)).astype(np.float32)
    if network.scale:
        x = (x * network.scale + network.shift).astype(np.float32)
    theirs = session.run(None, {"observation": x})[0]
    ours = policy(x)
    if isinstance(policy.actions, Continuous):
        size = max(1.0, *map(abs, policy.actions.low + policy.actions.high))
        difference = float(np.abs(theirs - ours).max()) / size
    else:
        # Two scores may be equal up to rounding; then either action is right.
        difference = float(np.mean(theirs != ours) > 0.01)
    if difference > TOLERANCE:
        raise RunError(f"the exported network differs from the policy by {difference:g}; nothing was written")
    Path(path).write_bytes(content)
    return difference
