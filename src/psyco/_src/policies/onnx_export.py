"""Export of a policy as an ONNX file that includes its observation scaling and its action range."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from psyco._src.core.errors import RunError
from psyco._src.envs.actions import Continuous, Discrete, MultiBinary, MultiDiscrete
from psyco._src.policies.c_export import NO_SHIELD
from psyco._src.policies.image_network import ImageNetwork
from psyco._src.policies.joint_network import several_agents
from psyco._src.policies.network import NOT_OFFERED
from psyco._src.policies.serialization import Policy
from psyco.version import __version__

OPSET = 17
SAMPLES = 256  # observations on which an exported network is compared
EPS = float(np.finfo(np.float32).eps)
TANH_ERROR = 8  # eps between two float32 versions of tanh; measured errors: XLA 2.3, ONNX Runtime 2.8


def to_onnx(policy: Policy) -> bytes:
    """Return the policy as ONNX: `observation` float32 `[n, inputs]` -> `action`, float32 `[n, size]` or int64.

    With a memory, it is a second input, `memory` float32 `[n, memory_size]`, 0 at the start of an episode, and a second
    output, `next_memory`, which is the input in the next step.
    """
    try:
        from onnx import TensorProto, checker, helper, numpy_helper
    except ImportError:
        raise RunError('exporting to ONNX needs it installed: pip install "psyco[onnx]"') from None
    if policy.shield is not None:
        raise RunError(NO_SHIELD)
    if policy.agents:
        raise RunError(several_agents(policy.agents))
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
    if isinstance(network, ImageNetwork):
        x = _add_convolutions(network, policy.theta, x, node, constant)
    mask = ""
    if network.masked:
        ends = [constant(f"at{k}", [k], np.int64) for k in (0, network.observed, network.inputs)]
        columns = constant("columns", [1], np.int64)
        mask = node("Slice", x, *ends[1:], columns, to="mask")
        x = node("Slice", x, *ends[:2], columns, to="observed")
    if len(network.one_hot) > 1:
        codes = [
            node("Gather", x, constant(f"index{i}", index, np.int64), to=f"code{i}", axis=1)
            for i, index in enumerate(network.joint_index)
        ]
        x = codes[0]
        for i, code in enumerate(codes[1:], 1):
            x = node("Mul", x, code, to=f"joint{i}")
    for i, (weight, bias) in enumerate(network.weights_and_biases(policy.theta), 1):
        if i == 1 and network.recurrent:
            gates = {"w": weight.T, "u": network.recurrent_weights(policy.theta).T, "b": np.pad(bias, (0, len(bias)))}
            w, u, b = (constant(name, value[None]) for name, value in gates.items())
            time = constant("time", [0], np.int64)
            inner, before = (node("Unsqueeze", y, time, to=f"{y}_in_time") for y in (x, "memory"))
            attributes = {"hidden_size": network.memory_size, "linear_before_reset": 1}
            nodes.append(helper.make_node("GRU", [inner, w, u, b, "", before], ["", "after"], **attributes))
            x = node("Squeeze", "after", time, to="next_memory")
            continue
        if i > 1 + network.recurrent:
            x = node("Relu", x, to=f"hidden{i - 1}")
        if network.indexed:
            row = node("Reshape", x, constant("flat", [-1], np.int64), to="numbers")
            nodes.append(helper.make_node("Cast", [row], ["rows"], to=TensorProto.INT64))
            x = node("Gather", constant(f"w{i}", weight), "rows", to=f"product{i}", axis=0)
        else:
            x = node("MatMul", x, constant(f"w{i}", weight), to=f"product{i}")
        x = node("Add", x, constant(f"b{i}", bias), to=f"sum{i}")
    if mask:
        offered = node("Greater", mask, constant("limit", 0.5), to="offered")
        x = node("Where", offered, x, constant("not_offered", NOT_OFFERED), to="masked")
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
    memory = [
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", network.memory_size])] * network.recurrent
        for name in ("memory", "next_memory")
    ]
    graph = helper.make_graph(
        nodes,
        "policy",
        [helper.make_tensor_value_info("observation", TensorProto.FLOAT, ["n", network.inputs]), *memory[0]],
        [helper.make_tensor_value_info("action", kind, shape), *memory[1]],
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


def _add_convolutions(
    network: ImageNetwork, theta: NDArray[np.float32], x: str, node: Callable[..., str], constant: Callable[..., str]
) -> str:
    """Add the convolutions of a network with parameters `[D]`; return the name of their outputs `[n, features]`."""
    x = node("Reshape", x, constant("image_shape", [-1, *network.image], np.int64), to="image")
    if len(network.image) == 2:
        x = node("Unsqueeze", x, constant("channel", [1], np.int64), to="channels")
    else:
        height, width, channels = (axis + 1 for axis in network.observes.axes)
        x = node("Transpose", x, to="channels", perm=[0, channels, height, width])
    x = node("Div", x, constant("highest", network.highest), to="pixels")
    for i, (kernel, bias) in enumerate(network.kernels(theta)):
        weights = constant(f"kernel{i}", kernel), constant(f"kernel_bias{i}", bias)
        x = node("Conv", x, *weights, to=f"convolved{i}", strides=[network.strides[i]] * 2)
        x = node("Relu", x, to=f"map{i}")
    x = node("Transpose", x, to="by_place", perm=[0, 2, 3, 1])
    return node("Reshape", x, constant("features_shape", [-1, network.head.inputs], np.int64), to="features")


def export_onnx(policy: Policy, path: str | Path) -> float:
    """Write the ONNX file, after a comparison with the policy on random observations and, if it has one, memories.

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
    rng = np.random.default_rng(0)
    x = rng.normal(size=(SAMPLES, network.inputs)).astype(np.float32)
    memory = rng.uniform(-1.0, 1.0, (SAMPLES, network.memory_size)).astype(np.float32)
    if network.scale:
        x = (x * network.scale + network.shift).astype(np.float32)
    if isinstance(network, ImageNetwork):
        x = (np.clip(np.abs(x) / 3, 0, 1) * network.highest).astype(np.float32)
    if network.masked:  # one action at least is offered
        x[:, network.observed :] = x[:, network.observed :] >= x[:, network.observed :].max(axis=1, keepdims=True) - 1
    given = {"observation": x} | ({"memory": memory} if network.recurrent else {})
    difference, permitted = _compare(policy, x, memory, session.run(None, given))
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
    policy: Policy, x: NDArray[np.float32], memory: NDArray[np.float32], outputs: list[NDArray[Any]]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the differences of outputs for observations `[N, inputs]`, and the permitted ones, `[N, size]` each."""
    network, layers = policy.network, policy.network.unflatten(jnp.asarray(policy.theta))
    if not network.recurrent:
        ours = jax.vmap(network.scores, (None, 0))(jnp.asarray(policy.theta), jnp.asarray(x))
        return _compare_actions(policy, x, outputs[0], ours, _rounding(policy, x))
    recall = jax.vmap(lambda x, memory: network.scores_and_memory(layers, x, memory))
    ours, after = recall(jnp.asarray(x), jnp.asarray(memory))
    error, error_after = _recurrent_rounding(policy, x, memory)
    difference, permitted = _compare_actions(policy, x, outputs[0], ours, error)
    apart = np.abs(outputs[1].astype(np.float64) - np.asarray(after))
    return np.concatenate([difference, apart], axis=1), np.concatenate([permitted, error_after], axis=1)


def _compare_actions(
    policy: Policy, x: NDArray[np.float32], theirs: NDArray[Any], ours: Any, error: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the differences of actions, and the permitted ones, given our scores `[N, outputs]` and their errors."""
    actions = policy.actions
    scores = np.asarray(ours, np.float64)
    if isinstance(actions, Continuous):
        low, high = np.array(actions.low), np.array(actions.high)
        # Half the width times the error after tanh, which is smaller where tanh is flat; then y + 1, the product and
        # the sum are rounded.
        permitted = (np.tanh(scores + error) - np.tanh(scores - error) + TANH_ERROR * EPS) * (high - low) / 2
        permitted += EPS * (2 * (high - low) + np.maximum(abs(low), abs(high)))
        decoded: Any = policy(x) if not policy.network.recurrent else actions.decode(np.tanh(scores))
        return np.abs(theirs.astype(np.float64) - decoded), permitted
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
    size, terms = _input_size(policy, x)
    for weight, bias in network.weights_and_biases(policy.theta):
        terms += len(weight) + 1  # with the bias
        size = size @ np.abs(weight.astype(np.float64)) + np.abs(bias)
    return terms * EPS * size


def _input_size(policy: Policy, x: NDArray[np.float32]) -> tuple[Any, int]:
    """Return the largest absolute inputs `[N, features]` of the first layer, and the roundings behind each.

    Shift, scale and products of one-hot codes round, and convolutions like layers.
    """
    network = policy.network
    size = np.abs(x.astype(np.float64))
    if network.scale:
        size = np.abs(x - np.array(network.shift)) / network.scale
    if isinstance(network, ImageNetwork):
        kernels = [weight[0].size for weight, _ in network.kernels(policy.theta)]
        return network.encode(np.abs(policy.theta.astype(np.float64)), size), 2 + sum(kernels) + len(kernels)
    return network.join(size[:, : network.observed]), 2 + len(network.one_hot)


def _recurrent_rounding(
    policy: Policy, x: NDArray[np.float32], memory: NDArray[np.float32]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return bounds on the differences of the scores `[N, outputs]` and of the next memory, as `_rounding` does.

    The logistic function has a slope of at most 1/4, tanh of at most 1, and a memory is within [-1, 1].
    """
    network = policy.network
    (weight, bias), *layers = network.weights_and_biases(policy.theta.astype(np.float64))
    size, terms = _input_size(policy, x)
    sizes = [size @ np.abs(weight) + np.abs(bias)]
    sizes.append(np.abs(memory) @ np.abs(network.recurrent_weights(policy.theta.astype(np.float64))))
    inner, recurrent = (
        EPS * (each + 2) * size for each, size in zip((terms + len(weight), 2 + len(memory.T)), sizes, strict=True)
    )
    update, reset, new = np.split(inner + recurrent, 3, axis=1)
    update, reset = (0.25 * each + TANH_ERROR * EPS for each in (update, reset))
    new = new + np.split(sizes[1], 3, axis=1)[2] * reset + TANH_ERROR * EPS
    error = after = new + 2.0 * update + 4.0 * EPS
    size = np.ones_like(error)
    for weight, bias in layers:
        size = size @ np.abs(weight) + np.abs(bias)
        error = error @ np.abs(weight) + (len(weight) + 1) * EPS * size
    return error, after
