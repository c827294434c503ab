"""One way each to ask a policy of others: a function, a Stable-Baselines3 model, an ONNX file, a PyTorch module.

Optional packages are imported where they are needed. What is in memory already needs no import to be told apart:
who holds a `torch.nn.Module` has imported torch.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import sys
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import cloudpickle
import numpy as np
from numpy.typing import NDArray

from psyco._src.domain.actions import Actions, Continuous
from psyco._src.domain.gym_env import name_of
from psyco._src.errors import RunError
from psyco._src.policy.recognize import recognized

ROWS = 64  # networks of others always see so many rows: then a row does not depend on how many there are

# (flat observations [N, size], raw observations [N], the actions to choose from) -> actions [N].
Decide: TypeAlias = Callable[[NDArray[np.float32], Sequence[Any], Actions], Sequence[Any]]


def by_function(function: Callable[[Any], Any]) -> Decide:
    """A function from one observation to one action."""
    return lambda flat, raw, actions: [function(observation) for observation in raw]


# ---- Stable-Baselines3 ----------------------------------------------------------------------------------------


def load_sb3(path: Path, algorithm: str | None) -> Decide:
    """A saved model; which algorithm made it is found from the file unless it is given."""
    try:
        import stable_baselines3 as sb3
    except ImportError:
        raise RunError(f'{path} needs Stable-Baselines3 installed: pip install "psyco[sb3]"') from None
    name = (algorithm or sb3_algorithm(path)).upper()
    if not hasattr(sb3, name):
        raise RunError(f"Stable-Baselines3 has no algorithm {name!r}; write for example sb3:ppo:{path}")
    try:
        model = getattr(sb3, name).load(path, device="cpu")
    except Exception as error:  # whatever its pickled parts raise
        raise RunError(
            f"Stable-Baselines3 cannot load {path} as {name}: {type(error).__name__}: {error}"
        ) from error
    return by_model(model)


def unpack_sb3(packed: bytes) -> Decide:
    """A packed pair of a policy of Stable-Baselines3 and its VecNormalize, or None."""
    policy, statistics = cloudpickle.loads(packed)
    return by_model(policy.to("cpu"), statistics)


def by_model(model: Any, statistics: Any = None) -> Decide:
    """A model of Stable-Baselines3, or its policy; `statistics` (VecNormalize) scale what it sees, unchanged by it."""

    def predict(rows: Any) -> NDArray[Any]:
        return predicted(model, rows if statistics is None else statistics.normalize_obs(rows))

    return lambda flat, raw, actions: list(_by_rows(predict, raw))


def predicted(model: Any, observation: Any) -> Any:
    """What `model.predict` chooses for one observation or for rows of them; a model with a memory is refused."""
    takes = inspect.signature(model.predict).parameters
    answer = model.predict(observation, **({"deterministic": True} if "deterministic" in takes else {}))
    action, memory = answer if isinstance(answer, tuple) else (answer, None)
    if memory is not None:
        raise RunError(
            f"{name_of(type(model))} has a memory; PSyCo can verify policies that act on what they see now"
        )
    return action


def sb3_policy(model: Any) -> Any | None:
    """The policy of a model of Stable-Baselines3, or that policy itself; None of anything else."""
    policy = getattr(model, "policy", model)
    return policy if _is(policy, "stable_baselines3.common.policies", "BasePolicy") else None


def sb3_algorithm(path: Path) -> str:
    """Which algorithm saved this file, from what it kept; nothing of it is unpickled."""
    try:
        with zipfile.ZipFile(path) as file:
            data = json.loads(file.read("data"))
    except (OSError, KeyError, ValueError, zipfile.BadZipFile) as error:
        raise RunError(f"{path} is no model of Stable-Baselines3 ({error})") from None
    module = str(data.get("policy_class", {}).get("__module__", ""))
    for name in ("dqn", "sac"):
        if f".{name}." in module:
            return name
    if ".td3." in module:
        return "td3" if data.get("policy_delay", 2) > 1 else "ddpg"
    return "ppo" if "clip_range" in data else "a2c"


# ---- networks -------------------------------------------------------------------------------------------------


def load_onnx(path: Path) -> Decide:
    """An ONNX file with one input `[n, size]`, where n may be fixed."""
    try:
        import onnxruntime
    except ImportError:
        raise RunError(f'{path} needs ONNX Runtime installed: pip install "psyco[onnx]"') from None
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    try:
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime has a class for each of its troubles
        raise RunError(f"{path} is not an ONNX file that can be run: {error}") from None
    first, *others = session.get_inputs()
    if others or len(first.shape) == 1:
        takes = f"{len(others) + 1} inputs" if others else f"an input of shape {first.shape}"
        raise RunError(f"{path} takes {takes}; a policy takes one, the observations [n, size]")
    fixed = first.shape[0] if first.shape and isinstance(first.shape[0], int) else ROWS
    return _by_network(lambda rows: session.run(None, {first.name: rows})[0], fixed)


def load_torch(path: Path) -> Decide:
    """A TorchScript module."""
    try:
        import torch
    except ImportError:
        raise RunError(f'{path} needs PyTorch installed: pip install "psyco[torch]"') from None
    try:
        return by_module(torch.jit.load(str(path), map_location="cpu").eval())
    except RuntimeError as error:
        what = recognized(path) or (
            "not a TorchScript module; save one with torch.jit.script(...).save(...) "
            f"({str(error).splitlines()[0]})"
        )
        raise RunError(f"{path} is {what}") from None


def unpack_torch(packed: bytes) -> Decide:
    """A packed `torch.nn.Module`."""
    return by_module(cloudpickle.loads(packed).to("cpu").eval())


def by_module(module: Any) -> Decide:
    """A `torch.nn.Module` on the CPU, called on float32 rows `[n, size]`; of several outputs the first."""
    import torch

    def run(rows: NDArray[np.float32]) -> NDArray[Any]:
        with torch.inference_mode():
            output = module(torch.from_numpy(rows))
        return (output[0] if isinstance(output, tuple) else output).numpy()

    return _by_network(run)


def is_module(thing: Any) -> bool:
    """Whether this is a `torch.nn.Module`."""
    return _is(thing, "torch.nn", "Module")


def _by_network(run: Callable[[NDArray[np.float32]], NDArray[Any]], rows: int = ROWS) -> Decide:
    """A network `[rows, size] -> [rows, ...]` whose outputs are actions, or scores of discrete ones."""

    def decide(flat: NDArray[np.float32], raw: Sequence[Any], actions: Actions) -> Sequence[Any]:
        y = np.asarray(_by_rows(run, flat, rows))
        if not np.isfinite(y).all():
            raise ValueError("the policy gives a number that is not finite")
        size = 1 if actions.size is None else actions.size
        if (
            not isinstance(actions, Continuous)
            and y.dtype.kind == "f"
            and y.shape == (len(flat), actions.outputs)
        ):
            return np.asarray(actions.decode(y))  # type: ignore[return-value]  # scores: the largest wins
        if y.size != len(flat) * size:
            raise ValueError(f"the policy gives {y.shape[1:]} numbers per observation; an action is {size}")
        y = y.reshape(len(flat) if actions.size is None else (len(flat), size))
        if isinstance(actions, Continuous):
            return np.clip(y, actions.low, actions.high)
        return np.rint(y).astype(np.int64)

    return decide


# ---- what they share ------------------------------------------------------------------------------------------


def pack(thing: Any) -> bytes:
    """What is in memory, as it is now: the user's may go on learning, and worker processes need their own.

    Bytes, since `deepcopy` refuses the tensors that a policy keeps from its last training step.
    """
    try:
        return cloudpickle.dumps(thing)
    except Exception as error:  # whatever a stranger's object raises
        raise RunError(
            f"cannot copy the policy ({type(error).__name__}: {error}); save it to a file and give its name instead"
        ) from error


def tensors_digest(module: Any, statistics: Any = None) -> str:
    """SHA-256 of what acts: the names, types, shapes and bytes of all tensors, and of the statistics (VecNormalize)."""
    import torch

    parts = {
        f"{name} {tensor.dtype} {tuple(tensor.shape)}": _bytes(tensor.cpu().reshape(-1).view(torch.uint8))
        for name, tensor in module.state_dict().items()
        if isinstance(tensor, torch.Tensor)
    }
    if statistics is not None:
        each = statistics.obs_rms if isinstance(statistics.obs_rms, dict) else {"": statistics.obs_rms}
        parts |= {f"VecNormalize {key}": _bytes(rms.mean) + _bytes(rms.var) for key, rms in each.items()}
        parts["VecNormalize"] = _bytes([statistics.epsilon, statistics.clip_obs])
    digest = hashlib.sha256()
    for name, data in sorted(parts.items() or {name_of(type(module)): b""}.items()):
        digest.update(f"{name} {len(data)}\n".encode() + data)
    return digest.hexdigest()


def _bytes(values: Any) -> bytes:
    return np.ascontiguousarray(values).tobytes()


def _is(thing: Any, module: str, name: str) -> bool:
    """Whether this is an instance of `module.name`; if that was never imported, it is not."""
    return module in sys.modules and isinstance(thing, getattr(sys.modules[module], name))


def _by_rows(run: Callable[[Any], NDArray[Any]], observations: Any, rows: int = ROWS) -> NDArray[Any]:
    """`run` on blocks of so many observations, the last one filled up with copies of its first."""
    blocks = []
    for start in range(0, len(observations), rows):
        block = list(observations[start : start + rows])
        count = len(block)
        block += block[:1] * (rows - count)
        blocks.append(run(_stack(block))[:count])
    return np.concatenate(blocks)


def _stack(block: list[Any]) -> Any:
    if isinstance(block[0], dict):
        return {key: np.stack([each[key] for each in block]) for key in block[0]}
    return np.stack(block)
