"""One way each to ask a policy of others: a function, a Stable-Baselines3 model, an ONNX file, a PyTorch module.

Optional packages are imported where they are needed. What is in memory already needs no import to be told apart:
who holds a `torch.nn.Module` has imported torch.
"""

from __future__ import annotations

import hashlib
import inspect
import io
import json
import sys
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import cloudpickle
import numpy as np
from numpy.typing import NDArray

from psyco._src.core.errors import RunError, told
from psyco._src.envs.actions import Actions, Continuous
from psyco._src.envs.gym_env import name_of
from psyco._src.policies.stateful import ROWS, StatefulPolicy, explicit_state, stack

# (flat observations [N, size], raw observations [N], the actions to choose from) -> actions [N].
Decide: TypeAlias = Callable[[NDArray[np.float32], Sequence[Any], Actions], Sequence[Any]]


def by_function(function: Callable[[Any], Any]) -> Decide:
    """A function from one observation to one action."""
    return lambda flat, raw, actions: [function(observation) for observation in raw]


def by_predict(model: Any) -> Decide | StatefulPolicy:
    """`predict` of any object: for one observation, or for many with a memory as Stable-Baselines3 has it."""
    if {"state", "episode_start"} <= inspect.signature(model.predict).parameters.keys():
        return explicit_state(RecurrentPredict(model))
    return by_function(partial(predicted, model))


# ---- Stable-Baselines3 ----------------------------------------------------------------------------------------


def load_sb3(data: bytes, path: Path, algorithm: str | None) -> Decide | StatefulPolicy:
    """A saved model; which algorithm made it is found from the file unless it is given."""
    try:
        import stable_baselines3  # noqa: F401
    except ImportError:
        raise RunError(f'{path} needs Stable-Baselines3 installed: pip install "psyco[sb3]"') from None
    name = algorithm or sb3_algorithm(data, path)
    made_by = _sb3_class(name)
    if made_by is None:
        raise RunError(
            f"Stable-Baselines3 has no algorithm {name!r}; write for example sb3:ppo:{path}, "
            "or pip install sb3-contrib for RecurrentPPO and others"
        )
    try:
        model = made_by.load(io.BytesIO(data), device="cpu")
    except Exception as error:  # whatever its pickled parts raise
        raise RunError(
            f"Stable-Baselines3 cannot load {path} as {made_by.__name__}: {told(error)}"
        ) from error
    return by_model(model)


def unpack_sb3(packed: bytes) -> Decide | StatefulPolicy:
    """A packed pair of a policy of Stable-Baselines3 and its VecNormalize, or None."""
    policy, statistics = cloudpickle.loads(packed)
    return by_model(policy.to("cpu"), statistics)


def by_model(model: Any, statistics: Any = None) -> Decide | StatefulPolicy:
    """A model of Stable-Baselines3, or its policy; `statistics` (VecNormalize) scale what it sees, unchanged by it."""
    from stable_baselines3.common.policies import BasePolicy

    # Its own `predict` hands the state through untouched; who wrote another one may have a memory.
    if getattr(type(sb3_policy(model)), "predict", None) is not BasePolicy.predict:
        return explicit_state(RecurrentPredict(model, statistics))

    def predict(rows: Any) -> NDArray[Any]:
        return predicted(model, rows if statistics is None else statistics.normalize_obs(rows))

    return lambda flat, raw, actions: list(_by_rows(predict, raw))


def predicted(model: Any, observation: Any) -> Any:
    """What `model.predict` chooses for one observation or for rows of them; a memory that is dropped is refused."""
    takes = inspect.signature(model.predict).parameters
    answer = model.predict(observation, **({"deterministic": True} if "deterministic" in takes else {}))
    action, memory = answer if isinstance(answer, tuple) else (answer, None)
    if memory is not None:
        raise RunError(
            f"{name_of(type(model))} has a memory that its predict does not take back: let it have the arguments "
            "state and episode_start, as Stable-Baselines3's have, or give an object with reset() and act(observation)"
        )
    return action


class RecurrentPredict(NamedTuple):
    """`predict` of a recurrent model, with its state made explicit: (memory, which rows begin an episode)."""

    model: Any
    statistics: Any = None

    def initial(self, count: int) -> tuple[Any, NDArray[np.bool_]]:
        """No memory yet: the model makes one where an episode begins."""
        return None, np.ones(count, bool)

    def act(self, observations: Any, state: tuple[Any, NDArray[np.bool_]]) -> tuple[Any, Any]:
        """Actions for observations `[count, ...]`, and the state after them."""
        memory, begins = state
        seen = observations if self.statistics is None else self.statistics.normalize_obs(observations)
        actions, memory = self.model.predict(seen, state=memory, episode_start=begins, deterministic=True)
        return actions, (memory, np.zeros_like(begins))


def sb3_policy(model: Any) -> Any | None:
    """The policy of a model of Stable-Baselines3, or that policy itself; None of anything else."""
    policy = getattr(model, "policy", model)
    return policy if _is(policy, "stable_baselines3.common.policies", "BasePolicy") else None


def sb3_algorithm(data: bytes, path: Path) -> str:
    """Which algorithm saved this file, from what it kept; nothing of it is unpickled."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as file:
            kept = json.loads(file.read("data"))
    except (KeyError, ValueError, zipfile.BadZipFile) as error:
        raise RunError(f"{path} is no model of Stable-Baselines3 ({error})") from None
    module = str(kept.get("policy_class", {}).get("__module__", ""))
    for name in ("dqn", "sac"):
        if f".{name}." in module:
            return name
    if ".td3." in module:
        return "td3" if kept.get("policy_delay", 2) > 1 else "ddpg"
    if ".recurrent." in module:
        return "recurrentppo"
    return "ppo" if "clip_range" in kept else "a2c"


def _sb3_class(name: str) -> Any | None:
    """The algorithm of that name, in any case, of Stable-Baselines3 or of its contrib package."""
    for package in ("stable_baselines3", "sb3_contrib"):
        with suppress(ImportError):
            for each, thing in vars(import_module(package)).items():
                if each.lower() == name.lower() and isinstance(thing, type):
                    return thing
    return None


# ---- networks -------------------------------------------------------------------------------------------------


def load_onnx(network: bytes, path: Path) -> Decide:
    """An ONNX network with one input `[n, size]`, where n may be fixed; it has all its data inside."""
    try:
        import onnxruntime
    except ImportError:
        raise RunError(f'{path} needs ONNX Runtime installed: pip install "psyco[onnx]"') from None
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    # Bytes that also look like ORT's own format would be read as that, and were not looked through.
    options.add_session_config_entry("session.load_model_format", "ONNX")
    try:
        session = onnxruntime.InferenceSession(network, options, providers=["CPUExecutionProvider"])
        first, *others = session.get_inputs()
        fixed = first.shape[0] if first.shape and isinstance(first.shape[0], int) else ROWS
    except Exception as error:  # onnxruntime has a class for each of its troubles
        raise RunError(f"{path} is not an ONNX file that can be run: {error}") from None
    if others or len(first.shape) == 1:
        takes = f"{len(others) + 1} inputs" if others else f"an input of shape {first.shape}"
        raise RunError(f"{path} takes {takes}; a policy takes one, the observations [n, size]")
    return _by_network(lambda rows: session.run(None, {first.name: rows})[0], fixed)


def load_torch(data: bytes, path: Path) -> Decide:
    """A TorchScript module."""
    try:
        import torch
    except ImportError:
        raise RunError(f'{path} needs PyTorch installed: pip install "psyco[torch]"') from None
    try:
        return by_module(torch.jit.load(io.BytesIO(data), map_location="cpu").eval())
    except RuntimeError as error:
        raise RunError(
            f"{path} is not a TorchScript module; save one with torch.jit.script(...).save(...) "
            f"({str(error).splitlines()[0]})"
        ) from None


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
            f"cannot copy the policy ({told(error)}); give its name, saved to a file, "
            "or, if it has reset and act, its class"
        ) from error


PLAIN = (int, float, str, bytes, tuple, list, dict, type(None))


def tensors_digest(module: Any, statistics: Any = None) -> str:
    """SHA-256 of what acts: all tensors, how the layers are put together, and the statistics (VecNormalize)."""
    import torch

    parts = {
        f"{name} {tensor.dtype} {tuple(tensor.shape)}": _bytes(tensor.cpu().reshape(-1).view(torch.uint8))
        for name, tensor in module.state_dict().items()
        if isinstance(tensor, torch.Tensor)
    }
    for name, layer in module.named_modules():  # the same tensors with another activation are another policy
        kind = type(layer)
        parts[f"layer {name} {name_of(kind)} {layer.extra_repr()}"] = b"".join(map(_code, kind.__mro__[:-1]))
        parts[f"attributes of {name}"] = repr(sorted(_attributes(layer))).encode()
    if statistics is not None:
        each = statistics.obs_rms if isinstance(statistics.obs_rms, dict) else {"": statistics.obs_rms}
        parts |= {f"VecNormalize {key}": _bytes(rms.mean) + _bytes(rms.var) for key, rms in each.items()}
        parts["VecNormalize"] = _bytes([statistics.epsilon, statistics.clip_obs])
    digest = hashlib.sha256()
    for name, data in sorted(parts.items()):
        digest.update(f"{name} {len(data)}\n".encode() + data)
    return digest.hexdigest()


def _attributes(layer: Any) -> Iterator[tuple[str, str]]:
    """What a layer was told besides its tensors: numbers and texts, spaces, and functions that were put in its way."""
    for name, value in vars(layer).items():
        if "hooks" in name and value:
            yield from ((name, f"{name_of(hook)} {_code(hook)!r}") for hook in value.values())
        elif callable(value) and not name.startswith("_"):
            yield (
                name,
                f"{name_of(value) if hasattr(value, '__qualname__') else type(value)} {_code(value)!r}",
            )
        elif isinstance(value, PLAIN) or name in ("observation_space", "action_space"):
            yield name, repr(value)


def _code(kind: Any) -> bytes:
    """The source code of a class or function of the user's own, where it is to be found."""
    if str(kind.__module__).partition(".")[0] in ("torch", "stable_baselines3"):  # known by their versions
        return b""
    with suppress(OSError, TypeError):
        return inspect.getsource(kind).encode()
    return b""


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
        blocks.append(run(stack(block))[:count])
    return np.concatenate(blocks)
