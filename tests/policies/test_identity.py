"""A hash stands for what acts: the whole file, all tensors and layers; and where it is of a name only, that is said."""

from __future__ import annotations

import hashlib
import importlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import psyco
from psyco._src.policies.external import as_policy, open_policy
from psyco._src.verification.certificate_html import certificate_html
from tests.environments import Alternating, Walk, to_the_left

DOMAIN = psyco.make(Walk, horizon=20)
REQUIREMENT = "P>=0.5 [ G (abs(obs[0]) <= 2.9) ] & C>=0.9"


class Predictor:
    def predict(self, observation: Any) -> int:
        return to_the_left(observation)


@pytest.mark.parametrize(
    "policy",
    [to_the_left, lambda observation: 0, Predictor(), Alternating, "python:tests.environments:to_the_left"],
)
def test_code_is_known_by_its_name_only_and_the_certificate_says_so(policy: Any) -> None:
    certificate = psyco.verify(policy, DOMAIN, REQUIREMENT, max_episodes=10)
    source = as_policy(policy).source  # type: ignore[union-attr]
    assert source.startswith("python:") and certificate.policy == hashlib.sha256(source.encode()).hexdigest()
    assert (certificate.policy_kind, certificate.policy_version) == ("name", None)
    assert "(of its name only)" in str(certificate)
    for text in (str(certificate), certificate_html(certificate)):
        assert "is Python code and known by its name only" in text


def test_a_version_tells_code_of_the_same_name_apart() -> None:
    one, other, none = (
        psyco.verify(to_the_left, DOMAIN, REQUIREMENT, max_episodes=10, version=version)
        for version in ("controller 3.1", "controller 3.2", None)
    )
    assert len({one.policy, other.policy, none.policy}) == 3
    assert one.policy_version == "controller 3.1" and "version controller 3.1" in str(one)
    assert psyco.replay(one, to_the_left, domain=DOMAIN, version="controller 3.1").matches
    assert any("policy" in each for each in psyco.replay(one, to_the_left, domain=DOMAIN).differences)
    with pytest.raises(psyco.RunError, match="a version is a text"):
        psyco.verify(to_the_left, DOMAIN, REQUIREMENT, version="")


def test_a_file_has_its_hash_whatever_it_is_called(tmp_path: Path) -> None:
    from tests.policies.test_serialization import a_policy

    policy, domain = a_policy()
    certificate = psyco.verify(policy, domain, "P>=0.5 [ G step >= 0 ]", max_episodes=5, version="final")
    assert (certificate.policy, certificate.policy_kind) == (policy.digest, "file")
    assert certificate.policy_version == "final" and not any("Python code" in note for note in certificate.notes)


# ---- ONNX --------------------------------------------------------------------------------------------------------


@pytest.fixture
def linear(tmp_path: Path) -> Callable[..., Path]:
    """A file of a network that goes left or right, with its weights outside of it, in a folder of its own."""
    import onnx

    def write(name: str, weights: Any, location: str = "weights.bin", constant: bool = False) -> Path:
        folder = tmp_path / name
        folder.mkdir()
        array = np.array(weights, np.float32)
        (folder / "weights.bin").write_bytes(array.tobytes())
        tensor = onnx.numpy_helper.from_array(array, "w")
        tensor.ClearField("raw_data")
        tensor.data_location = onnx.TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value=location)
        nodes = [onnx.helper.make_node("MatMul", ["x", "w"], ["y"])]
        if constant:
            nodes.insert(0, onnx.helper.make_node("Constant", [], ["w"], value=tensor))
        ends = [onnx.helper.make_tensor_value_info(end, onnx.TensorProto.FLOAT, ["n", 2]) for end in ("x", "y")]
        graph = onnx.helper.make_graph(nodes, "g", ends[:1], ends[1:], [] if constant else [tensor])
        model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
        (folder / "model.onnx").write_bytes(model.SerializeToString())
        return folder / "model.onnx"

    return write


@pytest.mark.extra("onnxruntime", "onnx")
@pytest.mark.parametrize("constant", [False, True])
def test_opposite_weights_beside_the_same_onnx_file_are_two_policies(
    linear: Callable[..., Path], constant: bool
) -> None:
    """The first goes towards 0, the second away from it."""
    home, away = (
        linear(name, [[sign, -sign], [0, 0]], constant=constant) for name, sign in (("home", 1), ("away", -1))
    )
    assert home.read_bytes() == away.read_bytes()
    by_hand = [to_the_left, lambda observation: 1 - to_the_left(observation)]
    found = [psyco.verify(str(path), DOMAIN, REQUIREMENT, max_episodes=60) for path in (home, away)]
    assert found[0].policy != found[1].policy and found[0].policy_kind == "file"
    for certificate, function in zip(found, by_hand, strict=True):
        alone = psyco.verify(function, DOMAIN, REQUIREMENT, max_episodes=60)
        assert certificate.findings[0].satisfied == alone.findings[0].satisfied
    assert found[0].findings[0].satisfied != found[1].findings[0].satisfied


@pytest.mark.extra("onnxruntime", "onnx")
def test_what_was_hashed_is_what_runs(linear: Callable[..., Path]) -> None:
    path = linear("home", [[1, -1], [0, 0]])
    policy = open_policy(str(path))
    expected = psyco.verify(str(path), DOMAIN, REQUIREMENT, max_episodes=30)
    (path.parent / "weights.bin").write_bytes(np.array([[-1, 1], [0, 0]], np.float32).tobytes())
    changed = psyco.verify(policy, DOMAIN, REQUIREMENT, max_episodes=30)
    assert (changed.policy, changed.findings) == (expected.policy, expected.findings)
    assert open_policy(str(path)).digest != policy.digest


@pytest.mark.extra("onnx")
@pytest.mark.parametrize(
    "location",
    ["../secret.bin", "{folder}/secret.bin", "{folder}/home/weights.bin", "", "link.bin", "*/_ORT_MEM_ADDR_/*", "a\0b",
     "missing.bin", ".", "fifo"],
)  # fmt: skip
def test_an_onnx_file_reaches_nothing_outside_of_its_folder(
    linear: Callable[..., Path], tmp_path: Path, location: str
) -> None:
    (tmp_path / "secret.bin").write_bytes(bytes(16))
    path = linear("home", np.zeros((2, 2)), location.format(folder=tmp_path), constant="secret" in location)
    (path.parent / "link.bin").symlink_to(tmp_path / "secret.bin")
    os.mkfifo(path.parent / "fifo")
    with pytest.raises(psyco.RunError, match=r"refers to .* (in the model's folder|not in its folder)"):
        open_policy(str(path))


@pytest.mark.extra("onnx")
@pytest.mark.parametrize(("key", "value"), [("offset", "8"), ("offset", "-4"), ("length", "20"), ("offset", "many")])
def test_external_data_that_is_too_short_is_refused(linear: Callable[..., Path], key: str, value: str) -> None:
    import onnx

    path = linear("home", np.zeros((2, 2)))
    model = onnx.load(path, load_external_data=False)
    model.graph.initializer[0].external_data.add(key=key, value=value)
    model.graph.initializer[0].external_data.add(key="length", value="16") if key == "offset" else None
    path.write_bytes(model.SerializeToString())
    with pytest.raises(psyco.RunError, match=r"damaged: 'weights.bin' does not hold"):
        open_policy(str(path))


@pytest.mark.extra("onnx", "onnxruntime")
@pytest.mark.parametrize(("domain", "operator"), [("com.evil", "Run"), ("com.microsoft", "EPContext"), ("", "PyOp")])
def test_operators_that_are_not_part_of_onnx_are_refused(
    linear: Callable[..., Path], domain: str, operator: str
) -> None:
    """A model names operators, but brings none along: a library of them would have to be registered by the host."""
    import onnx

    path = linear("home", np.zeros((2, 2)))
    model = onnx.load(path, load_external_data=False)
    model.graph.node[0].op_type, model.graph.node[0].domain = operator, domain
    model.opset_import.add(domain=domain, version=1)
    path.write_bytes(model.SerializeToString())
    with pytest.raises(psyco.RunError, match="not an ONNX file that can be run"):
        psyco.verify(str(path), DOMAIN, REQUIREMENT)


# ---- modules and files that run code ----------------------------------------------------------------------------


@pytest.mark.extra("torch")
def test_modules_with_the_same_tensors_and_other_layers_are_told_apart() -> None:
    import torch

    layers = [torch.nn.ReLU(), torch.nn.Tanh(), torch.nn.LeakyReLU(0.1), torch.nn.LeakyReLU(0.2)]
    linear = torch.nn.Linear(2, 2)
    policies = [as_policy(torch.nn.Sequential(linear, layer)) for layer in layers]
    assert len({policy.digest for policy in policies}) == len(layers)
    assert {policy.kind for policy in policies} == {"tensors"}


@pytest.mark.extra("torch")
def test_a_module_whose_code_was_changed_is_another_policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    digests = []
    for sign in ("", "", "-"):
        code = f"import torch\nclass Net(torch.nn.Module):\n    def forward(self, x):\n        return {sign}x\n"
        (tmp_path / "a_net.py").write_text(code)
        importlib.invalidate_caches()
        sys.modules.pop("a_net", None)
        digests.append(as_policy(importlib.import_module("a_net").Net()).digest)
    assert digests[0] == digests[1] != digests[2]


@pytest.fixture
def bomb(tmp_path: Path) -> Path:
    """A TorchScript module that writes a file of its choice whenever it is asked."""
    import torch

    class Bomb(torch.nn.Module):  # type: ignore[name-defined,misc]
        def __init__(self, path: str) -> None:
            super().__init__()
            self.path = path

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            written = torch.from_file(self.path, True, 4, dtype=torch.uint8).fill_(65)
            return torch.zeros(x.shape[0], 2) + 0 * written[0]

    torch.jit.script(Bomb(str(tmp_path / "written"))).save(str(tmp_path / "model.pt"))
    return tmp_path / "model.pt"


@pytest.mark.extra("torch")
def test_torchscript_runs_only_when_it_is_trusted_by_name(bomb: Path, cli: Callable[..., Any]) -> None:
    asked = "verify", bomb, "--domain", "tests.environments:Walk", "--horizon", 5, "--require", REQUIREMENT
    said = cli(*asked, "--max-episodes", 2)
    assert said.status == 2 and f"--trust {bomb}" in said.err and "TorchScript is a program" in said.err
    with pytest.raises(psyco.RunError, match="can run code"):
        psyco.verify(bomb, DOMAIN, REQUIREMENT, trust=["another.pt"])
    assert not (bomb.parent / "written").exists()
    assert cli(*asked, "--max-episodes", 2, "--trust", bomb).status == 3
    assert (bomb.parent / "written").read_bytes() == b"AAAA"  # so the trust was needed


def test_a_pickled_model_is_opened_only_when_it_is_trusted_by_name(tmp_path: Path) -> None:
    (tmp_path / "model.zip").write_bytes(b"anything")
    name = f"sb3:ppo:{tmp_path / 'model.zip'}"
    for use in (open_policy, as_policy, lambda each: psyco.verify(each, DOMAIN, REQUIREMENT)):
        with pytest.raises(psyco.RunError, match=r"pickled objects, .* --trust sb3:ppo:.* safetensors file needs no"):
            use(name)
    for trusted in (name, str(tmp_path / "model.zip")):
        assert open_policy(name, trust=[trusted]).kind == "file"
