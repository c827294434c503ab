"""Export of a policy as an ONNX file that includes its observation scaling and its action range."""

from __future__ import annotations

from itertools import accumulate
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from psyco._src.core.errors import RunError
from psyco._src.envs.actions import Continuous, Discrete, MultiBinary, MultiDiscrete
from psyco._src.policies.serialization import Policy
from psyco.version import __version__

OPSET = 17
SAMPLES = 256  # observations on which an exported network is compared
EPS = float(np.finfo(np.float32).eps)
TANH_ERROR = 8  # eps between two float32 versions of tanh; measured errors: XLA 2.3, ONNX Runtime 2.8


def to_onnx(policy: Policy) -> bytes:
    """Return the policy as ONNX: `observation` float32 `[n, inputs]` -> `action`, float32 `[n, size]` or int64."""
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
    x = "observation"
    if network.scale:
        x = node("Sub", x, constant("shift", network.shift), to="shifted")
        x = node("Div", x, constant("scale", network.scale), to="scaled")
    if len(network.one_hot) > 1:
        codes = [
            node("Gather", x, constant(f"index{i}", index, np.int64), to=f"code{i}", axis=1)
            for i, index in enumerate(network.joint_index)
        ]
        x = codes[0]
        for i, code in enumerate(codes[1:], 1):
            x = node("Mul", x, code, to=f"joint{i}")
    for i, (weight, bias) in enumerate(network.weights_and_biases(policy.theta), 1):
        if i > 1:
            x = node("Relu", x, to=f"hidden{i - 1}")
        if network.indexed:
            row = node("Reshape", x, constant("flat", [-1], np.int64), to="numbers")
            nodes.append(helper.make_node("Cast", [row], ["rows"], to=TensorProto.INT64))
            x = node("Gather", constant(f"w{i}", weight), "rows", to=f"product{i}", axis=0)
        else:
            x = node("MatMul", x, constant(f"w{i}", weight), to=f"product{i}")
        x = node("Add", x, constant(f"b{i}", bias), to=f"sum{i}")
    y = x if actions.ranked else node("Tanh", x, to="y")
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
    """Write the ONNX file, after a comparison with the policy on random observations.

    Returns the largest difference of actions; for discrete actions, the largest difference between the scores of the
    chosen ones. Nothing is written if it exceeds float32 rounding.
    """
    try:
        import onnxruntime
    except ImportError:
        raise RunError('checking an exported policy needs ONNX Runtime: pip install "psyco[onnx]"') from None
    content = to_onnx(policy)
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    network = policy.network
    x = np.random.default_rng(0).normal(size=(SAMPLES, network.inputs)).astype(np.float32)
    if network.scale:
        x = (x * network.scale + network.shift).astype(np.float32)
    difference, permitted = _compare(policy, x, session.run(None, {"observation": x})[0])
    if not (difference <= permitted).all():  # this way around, since NaN must not pass
        at = np.argmax(difference - permitted)
        raise RunError(
            f"the exported network differs from the policy by {difference.flat[at]:g} where rounding explains "
            f"{permitted.flat[at]:g}; nothing was written"
        )
    try:
        Path(path).write_bytes(content)
    except OSError as error:
        raise RunError(f"cannot write {path}: {error.strerror}") from None
    return float(difference.max())


def _compare(
    policy: Policy, x: NDArray[np.float32], theirs: NDArray[Any]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the differences of actions for observations `[N, inputs]`, and the permitted ones, `[N, size]` each."""
    actions = policy.actions
    ours = jax.vmap(policy.network.scores, (None, 0))(jnp.asarray(policy.theta), jnp.asarray(x))
    scores = np.asarray(ours, np.float64)
    error = _rounding(policy, x)
    if isinstance(actions, Continuous):
        low, high = np.array(actions.low), np.array(actions.high)
        # Half the width times the error after tanh, which is smaller where tanh is flat; then y + 1, the product and
        # the sum are rounded.
        permitted = (np.tanh(scores + error) - np.tanh(scores - error) + TANH_ERROR * EPS) * (high - low) / 2
        permitted += EPS * (2 * (high - low) + np.maximum(abs(low), abs(high)))
        return np.abs(theirs.astype(np.float64) - policy(x)), permitted
    rows, difference, permitted = np.arange(len(x)), [], []
    for (ranked, errors), choice in zip(_choices(actions, scores, error), theirs.reshape(len(x), -1).T, strict=True):
        best = ranked.argmax(axis=1)
        difference.append(ranked[rows, best] - ranked[rows, choice])
        # Another choice is permitted only where the two scores are equal up to their errors.
        permitted.append(errors[rows, best] + errors[rows, choice])
    return np.stack(difference, axis=1), np.stack(permitted, axis=1)


def _choices(
    actions: Discrete | MultiDiscrete | MultiBinary, scores: NDArray[Any], error: NDArray[Any]
) -> list[tuple[NDArray[Any], NDArray[Any]]]:
    """Return scores and errors `[N, k]` of the k alternatives of each choice; a switch compares its score with 0."""
    match actions:
        case Discrete():
            return [(scores, error)]
        case MultiDiscrete(n):
            ends = list(accumulate(n))[:-1]
            return list(zip(np.split(scores, ends, axis=1), np.split(error, ends, axis=1), strict=True))
        case MultiBinary():
            off = np.zeros(len(scores))
            return [(np.stack([off, y], 1), np.stack([off, e], 1)) for y, e in zip(scores.T, error.T, strict=True)]


def _rounding(policy: Policy, x: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return a bound on the difference of two float32 evaluations of the scores `[N, outputs]`, in any order of sums.

    The error of a sum of n products is at most n eps/2 Σ|products| (Higham, Accuracy and Stability of Numerical
    Algorithms, section 3.1), and the difference of two sums twice that. Large weights whose products cancel make the
    bound large compared with the score: no float32 evaluation of such a score is more accurate.
    """
    network = policy.network
    size = np.abs(x.astype(np.float64))
    if network.scale:
        size = np.abs(x - np.array(network.shift)) / network.scale
    size = network.join(size)
    terms = 2 + len(network.one_hot)  # shift, scale and products of one-hot codes round too
    for weight, bias in network.weights_and_biases(policy.theta):
        terms += len(weight) + 1  # with the bias
        size = size @ np.abs(weight.astype(np.float64)) + np.abs(bias)
    return terms * EPS * size
