"""Loaders of external policies: a function, a Stable-Baselines3 model, an ONNX file, a PyTorch module.

Optional packages are imported where they are needed. The type of an object in memory is recognized without an import: a
`torch.nn.Module` exists only where torch is imported.
"""

from __future__ import annotations

import hashlib
import inspect
import io
import json
import sys
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import cloudpickle
import numpy as np
from numpy.typing import NDArray

from psyco._src.core.errors import RunError, format_exception
from psyco._src.core.files import read_bytes
from psyco._src.envs.actions import Actions, Continuous
from psyco._src.envs.registry import qualified_name
from psyco._src.policies.stateful import BATCH_ROWS, EpisodeFunction, StatefulPolicy, from_explicit_state, stack

# (flat observations [N, size], raw observations [N], action space) -> actions [N].
BatchFunction: TypeAlias = Callable[[NDArray[np.float32], Sequence[Any], Actions], Sequence[Any]]


@contextmanager
def one_torch_thread() -> Iterator[None]:
    """Let PyTorch compute with one thread: for the few rows of a policy, waiting for others takes longer.

    So the result does not depend on the number of cores either.
    """
    torch = sys.modules.get("torch")
    if torch is None:
        yield
        return
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def from_function(function: Callable[[Any], Any]) -> BatchFunction:
    """Wrap a function from one observation to one action."""
    return lambda flat, raw, actions: [function(observation) for observation in raw]


def from_predict(model: Any) -> BatchFunction | StatefulPolicy:
    """Wrap `predict` of any object: for one observation, or for many with a memory as in Stable-Baselines3."""
    if {"state", "episode_start"} <= inspect.signature(model.predict).parameters.keys():
        return from_explicit_state(RecurrentPredict(model))
    return from_function(partial(predict_action, model))


# ---- Stable-Baselines3 ----------------------------------------------------------------------------------------


def load_sb3(data: bytes, path: Path, algorithm: str | None) -> BatchFunction | StatefulPolicy:
    """Load a saved model; its algorithm is read from the file unless it is given."""
    try:
        import stable_baselines3  # noqa: F401
    except ImportError:
        raise RunError(f'{path} needs Stable-Baselines3 installed: pip install "psyco[sb3]"') from None
    name = algorithm or sb3_algorithm(data, path)
    algorithm_class = _sb3_class(name)
    if algorithm_class is None:
        raise RunError(
            f"Stable-Baselines3 has no algorithm {name!r}; write for example sb3:ppo:{path}, "
            "or pip install sb3-contrib for RecurrentPPO and others"
        )
    try:
        model = algorithm_class.load(io.BytesIO(data), device="cpu")
    except Exception as error:  # any error of its pickled parts
        raise RunError(
            f"Stable-Baselines3 cannot load {path} as {algorithm_class.__name__}: {format_exception(error)}"
        ) from error
    return from_sb3_model(model)


def unpack_sb3(packed: bytes) -> BatchFunction | StatefulPolicy:
    """Load a packed pair of a policy of Stable-Baselines3 and its VecNormalize, or None."""
    policy, statistics = cloudpickle.loads(packed)
    return from_sb3_model(policy.to("cpu"), statistics)


def from_sb3_model(model: Any, statistics: Any = None) -> BatchFunction | StatefulPolicy:
    """Wrap a model of Stable-Baselines3, or its policy; fixed `statistics` (VecNormalize) scale its observations."""
    from stable_baselines3.common.policies import BasePolicy

    # The predefined `predict` returns the state unchanged; an overridden one may have a memory.
    if getattr(type(sb3_policy(model)), "predict", None) is not BasePolicy.predict:
        return from_explicit_state(RecurrentPredict(model, statistics))

    return Sb3Function(model, statistics)


@dataclass(frozen=True)
class Sb3Function:
    """The BatchFunction of a model of Stable-Baselines3, or of its policy, without a memory."""

    model: Any
    statistics: Any  # VecNormalize, or None

    def __call__(self, flat: NDArray[np.float32], raw: Sequence[Any], actions: Actions) -> Sequence[Any]:
        return list(_in_blocks(self._predict, raw))

    def _predict(self, rows: Any) -> NDArray[Any]:
        scaled = rows if self.statistics is None else self.statistics.normalize_obs(rows)
        return np.asarray(predict_action(self.model, scaled))


def predict_action(model: Any, observation: Any) -> Any:
    """Return the action of `model.predict` for one observation or a batch; raise RunError if it returns a memory."""
    parameters = inspect.signature(model.predict).parameters
    answer = model.predict(observation, **({"deterministic": True} if "deterministic" in parameters else {}))
    action, memory = answer if isinstance(answer, tuple) else (answer, None)
    if memory is not None:
        raise RunError(
            f"{qualified_name(type(model))} returns a memory that its predict does not take: give it the arguments "
            "state and episode_start, as in Stable-Baselines3, or give an object with reset() and act(observation)"
        )
    return action


class RecurrentPredict(NamedTuple):
    """`predict` of a recurrent model as an ExplicitStatePolicy; the state is (memory, rows that begin an episode)."""

    model: Any
    statistics: Any = None

    def initial(self, count: int) -> tuple[Any, NDArray[np.bool_]]:
        """Return an empty memory: the model makes one where an episode begins."""
        return None, np.ones(count, bool)

    def act(self, observations: Any, state: tuple[Any, NDArray[np.bool_]]) -> tuple[Any, Any]:
        """Return actions for observations `[count, ...]`, and the next state."""
        memory, begins = state
        scaled = observations if self.statistics is None else self.statistics.normalize_obs(observations)
        actions, memory = self.model.predict(scaled, state=memory, episode_start=begins, deterministic=True)
        return actions, (memory, np.zeros_like(begins))


def sb3_policy(model: Any) -> Any | None:
    """Return the policy of a model of Stable-Baselines3, or that policy itself; None for anything else."""
    policy = getattr(model, "policy", model)
    return policy if _is(policy, "stable_baselines3.common.policies", "BasePolicy") else None


def sb3_algorithm(data: bytes, path: Path) -> str:
    """Return the algorithm that saved this file, from its JSON data; nothing of it is unpickled."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as file:
            data_json = json.loads(file.read("data"))
    except (KeyError, ValueError, zipfile.BadZipFile) as error:
        raise RunError(f"{path} is not a model of Stable-Baselines3 ({error})") from None
    module = str(data_json.get("policy_class", {}).get("__module__", ""))
    for name in ("dqn", "sac"):
        if f".{name}." in module:
            return name
    if ".td3." in module:
        return "td3" if data_json.get("policy_delay", 2) > 1 else "ddpg"
    if ".recurrent." in module:
        return "recurrentppo"
    return "ppo" if "clip_range" in data_json else "a2c"


def _sb3_class(name: str) -> Any | None:
    """Return the algorithm of this name, in any case, of Stable-Baselines3 or of its contrib package."""
    for package in ("stable_baselines3", "sb3_contrib"):
        with suppress(ImportError):
            for each, thing in vars(import_module(package)).items():
                if each.lower() == name.lower() and isinstance(thing, type):
                    return thing
    return None


# ---- networks -------------------------------------------------------------------------------------------------


def load_onnx(network: bytes, path: Path) -> BatchFunction | StatefulPolicy:
    """Load an ONNX network with one input `[n, size]`, where n may be fixed, and without external data.

    A second input is a memory `[n, units]`, if the second output has this shape too.
    """
    try:
        import onnxruntime
    except ImportError:
        raise RunError(f'{path} needs ONNX Runtime installed: pip install "psyco[onnx]"') from None
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    # Without this, bytes that look like ORT's own format are read as that, which `read_onnx` has not checked.
    options.add_session_config_entry("session.load_model_format", "ONNX")
    try:
        session = onnxruntime.InferenceSession(network, options, providers=["CPUExecutionProvider"])
        first, *others = session.get_inputs()
        fixed = first.shape[0] if first.shape and isinstance(first.shape[0], int) else BATCH_ROWS
    except Exception as error:  # onnxruntime has many exception classes
        raise RunError(f"{path} is not an ONNX file that can be run: {error}") from None
    outputs = session.get_outputs()
    units = others[0].shape[1:] if others else []
    if (
        len(others) == 1
        and len(units) == 1
        and isinstance(units[0], int)
        and [x.shape[1:] for x in outputs[1:]] == [units]
    ):
        return _from_recurrent_network(
            lambda rows, memory: session.run(None, {first.name: rows, others[0].name: memory}), units[0], fixed
        )
    if others or len(first.shape) == 1:
        takes = f"{len(others) + 1} inputs" if others else f"an input of shape {first.shape}"
        raise RunError(
            f"{path} takes {takes}; a policy takes one, the observations [n, size], and with a memory a second one "
            "[n, units], whose next value is its second output"
        )
    return _from_network(lambda rows: session.run(None, {first.name: rows})[0], fixed)


def load_torch(data: bytes, path: Path) -> BatchFunction:
    """Load a TorchScript module."""
    try:
        import torch
    except ImportError:
        raise RunError(f'{path} needs PyTorch installed: pip install "psyco[torch]"') from None
    try:
        return from_torch_module(torch.jit.load(io.BytesIO(data), map_location="cpu").eval())
    except RuntimeError as error:
        raise RunError(
            f"{path} is not a TorchScript module; save one with torch.jit.script(...).save(...) "
            f"({str(error).splitlines()[0]})"
        ) from None


def unpack_torch(packed: bytes) -> BatchFunction:
    """Load a packed `torch.nn.Module`."""
    return from_torch_module(cloudpickle.loads(packed).to("cpu").eval())


def from_torch_module(module: Any) -> BatchFunction:
    """Wrap a `torch.nn.Module` on the CPU, called on float32 rows `[n, size]`; of several outputs the first counts."""
    import torch

    def run(rows: NDArray[np.float32]) -> NDArray[Any]:
        with torch.inference_mode():
            output = module(torch.from_numpy(rows))
        return (output[0] if isinstance(output, tuple) else output).numpy()

    return _from_network(run)


def is_module(thing: Any) -> bool:
    """Return whether this is a `torch.nn.Module`."""
    return _is(thing, "torch.nn", "Module")


def _from_network(run: Callable[[NDArray[np.float32]], NDArray[Any]], rows: int = BATCH_ROWS) -> BatchFunction:
    """Wrap a network `[rows, size] -> [rows, ...]` whose outputs are actions, or scores of discrete ones."""

    def decide(flat: NDArray[np.float32], raw: Sequence[Any], actions: Actions) -> Sequence[Any]:
        y = np.asarray(_in_blocks(run, flat, rows))
        if not np.isfinite(y).all():
            raise ValueError("the policy gives a number that is not finite")
        size = 1 if actions.size is None else actions.size
        has_scores = y.dtype.kind == "f" and y.shape == (len(flat), actions.outputs)
        if has_scores and not isinstance(actions, Continuous):
            return np.asarray(actions.decode(y))  # type: ignore[return-value]
        if y.size != len(flat) * size:
            raise ValueError(f"the policy gives {y.shape[1:]} numbers per observation; an action is {size}")
        y = y.reshape(len(flat) if actions.size is None else (len(flat), size))
        if isinstance(actions, Continuous):
            return np.clip(y, actions.low, actions.high)
        return np.rint(y).astype(np.int64)

    return decide


def _from_recurrent_network(
    run: Callable[[NDArray[np.float32], NDArray[np.float32]], Sequence[Any]], units: int, rows: int
) -> StatefulPolicy:
    """Wrap a network `[rows, size], [rows, units] -> outputs, [rows, units]`; an episode begins with a memory of 0."""

    def begin(seeds: Sequence[int]) -> EpisodeFunction:
        memory = np.zeros((len(seeds), units), np.float32)

        def act(
            episodes: NDArray[np.intp], flat: NDArray[np.float32], raw: Sequence[Any], actions: Actions
        ) -> Sequence[Any]:
            after: list[Any] = []  # of each block of rows, the last of which is filled up

            def outputs(both: NDArray[np.float32]) -> NDArray[Any]:
                chosen, remembered = run(both[:, :-units], both[:, -units:])
                after.append(remembered)
                return np.asarray(chosen)

            chosen = _from_network(outputs, rows)(np.concatenate([flat, memory[episodes]], axis=1), raw, actions)
            memory[episodes] = np.concatenate(after)[: len(episodes)]
            return chosen

        return act

    return StatefulPolicy(begin)


class OnnxFile(NamedTuple):
    """An ONNX network and its digest."""

    network: bytes  # ONNX without external data
    digest: str  # SHA-256 of the file; with external data, of the names and contents of all files


def read_onnx(path: Path) -> OnnxFile:
    """Read an ONNX file and its external data, which must lie in the same folder or below; nothing in it is run."""
    try:
        import onnx
    except ImportError:
        raise RunError(f'{path} needs ONNX installed: pip install "psyco[onnx]"') from None
    data = read_bytes(path, "policy")
    try:
        model = onnx.load_model_from_string(data)
    except Exception as error:  # protobuf has many exception classes
        raise RunError(f"{path} is not an ONNX file, or it is damaged ({error})") from None
    external = [each for each in _tensors(model) if each.data_location == onnx.TensorProto.EXTERNAL]
    if not external:
        return OnnxFile(data, hashlib.sha256(data).hexdigest())
    files: dict[str, bytes] = {}
    for tensor in external:
        entries = {entry.key: entry.value for entry in tensor.external_data}
        name = entries.get("location", "")
        if name not in files:
            files[name] = read_bytes(_external_path(path, name), "policy")
        tensor.raw_data = _tensor_bytes(path, files[name], entries)
        tensor.data_location = onnx.TensorProto.DEFAULT
        del tensor.external_data[:]
    digest = hashlib.sha256()
    for name, content in [("", data), *sorted(files.items())]:
        digest.update(f"{name} {len(content)}\n".encode() + content)
    return OnnxFile(model.SerializeToString(), digest.hexdigest())


def _tensors(message: Any) -> Iterator[Any]:
    """Yield all tensors of a model: weights, constants, in subgraphs and functions."""
    if message.DESCRIPTOR.name == "TensorProto":
        yield message
        return
    for field, value in message.ListFields():
        if field.message_type is not None:
            for each in value if isinstance(value, Sequence) else [value]:
                yield from _tensors(each)


def _external_path(path: Path, name: str) -> Path:
    """Return the file of this name below the model's folder; raise RunError for any other place."""
    try:
        folder = path.parent.resolve()
        found = (folder / name).resolve()  # follows links
        inside = bool(name) and not Path(name).is_absolute() and found.is_relative_to(folder)
    except (OSError, ValueError, RuntimeError):  # invalid characters, circular links
        inside = False
    if not inside:
        raise RunError(f"{path} refers to {name!r}: external data has to lie in the model's folder, or below it")
    if not found.is_file():
        raise RunError(f"{path} refers to {name!r}, which is not in its folder; copy it there, too")
    return found


def _tensor_bytes(path: Path, content: bytes, entries: dict[str, str]) -> bytes:
    try:
        start = int(entries.get("offset") or 0)
        stop = start + int(entries["length"]) if entries.get("length") else len(content)
    except ValueError:
        start = stop = -1
    if not 0 <= start <= stop <= len(content):
        raise RunError(f"{path} is damaged: {entries['location']!r} does not hold all that it refers to there")
    return content[start:stop]


# ---- copies, digests and batches ------------------------------------------------------------------------------


def pack(thing: Any) -> bytes:
    """Return a serialized copy of an object: the original may go on learning, and worker processes need copies.

    Not `deepcopy`, which refuses the tensors that a policy keeps from its last training step.
    """
    try:
        return cloudpickle.dumps(thing)
    except Exception as error:  # any error of a third-party object
        raise RunError(
            f"cannot copy the policy ({format_exception(error)}); give its name, saved to a file, "
            "or, if it has reset and act, its class"
        ) from error


PLAIN_TYPES = (int, float, str, bytes, tuple, list, dict, type(None))


def tensors_digest(module: Any, statistics: Any = None) -> str:
    """Return the SHA-256 of all tensors, the structure of the layers, and the statistics (VecNormalize)."""
    import torch

    parts = {
        f"{name} {tensor.dtype} {tuple(tensor.shape)}": _bytes(tensor.cpu().reshape(-1).view(torch.uint8))
        for name, tensor in module.state_dict().items()
        if isinstance(tensor, torch.Tensor)
    }
    for name, layer in module.named_modules():  # the same tensors with another activation are another policy
        kind = type(layer)
        parts[f"layer {name} {qualified_name(kind)} {layer.extra_repr()}"] = b"".join(map(_code, kind.__mro__[:-1]))
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
    """Yield the attributes of a layer besides its tensors: numbers, texts, spaces, functions and hooks."""
    for name, value in vars(layer).items():
        if "hooks" in name and value:
            yield from ((name, f"{qualified_name(hook)} {_code(hook)!r}") for hook in value.values())
        elif callable(value) and not name.startswith("_"):
            called = qualified_name(value) if hasattr(value, "__qualname__") else type(value)
            yield name, f"{called} {_code(value)!r}"
        elif isinstance(value, PLAIN_TYPES) or name in ("observation_space", "action_space"):
            yield name, repr(value)


def _code(kind: Any) -> bytes:
    """Return the source code of a user's class or function, if available."""
    if str(kind.__module__).partition(".")[0] in (
        "torch",
        "stable_baselines3",
    ):  # identified by their versions
        return b""
    with suppress(OSError, TypeError):
        return inspect.getsource(kind).encode()
    return b""


def _bytes(values: Any) -> bytes:
    return np.ascontiguousarray(values).tobytes()


def _is(thing: Any, module: str, name: str) -> bool:
    """Return whether this is an instance of `module.name`, without importing the module."""
    return module in sys.modules and isinstance(thing, getattr(sys.modules[module], name))


def _in_blocks(run: Callable[[Any], NDArray[Any]], observations: Any, rows: int = BATCH_ROWS) -> NDArray[Any]:
    """Call `run` on blocks of `rows` observations; the last block is filled with copies of its first row."""
    blocks = []
    for start in range(0, len(observations), rows):
        block = list(observations[start : start + rows])
        count = len(block)
        block += block[:1] * (rows - count)
        blocks.append(run(stack(block))[:count])
    return np.concatenate(blocks)
