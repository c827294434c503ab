"""What a page may ask for: nothing in a request can import code or read a file."""

import pytest

from psyco._src.core.errors import PsycoError
from psyco._src.studio.order import (
    as_arguments,
    read_domain,
    read_fraction,
    read_requirement,
    read_run_name,
    read_whole,
)


@pytest.mark.parametrize(
    "request_",
    [
        {"domain": "os:system"},
        {"domain": "my_env:Courier"},
        {"domain": "--help"},
        {"domain": "../secret.prism"},
        {"domain": "/etc/model.prism"},
        {"domain": "missing.prism"},
        {"domain": ""},
        {"domain": 3},
        {"domain": "CartPole-v1", "parameters": {"wrappers": "os:system"}},
        {"domain": "CartPole-v1", "parameters": {"signals": {"x": "os:system"}}},
        {"domain": "CartPole-v1", "parameters": {"a-b": 1}},
        {"domain": "CartPole-v1", "parameters": {"xml_file": "word"}},
        {"domain": "CartPole-v1", "parameters": {"x": "/etc/passwd"}},
        {"domain": "CartPole-v1", "parameters": {"x": [1]}},
        {"domain": "CartPole-v1", "parameters": {f"x{i}": 1 for i in range(50)}},
        {"domain": "CartPole-v1", "parameters": "x=1"},
    ],
)
def test_code_and_files_are_refused(request_, tmp_path):
    with pytest.raises(PsycoError):
        read_domain(request_, tmp_path, ())


def test_trusted_code_and_models_of_the_folder_are_taken(tmp_path):
    assert read_domain({"domain": "my_env:Courier"}, tmp_path, ["my_env:Courier"]).name == "my_env:Courier"
    (tmp_path / "model.prism").write_text("dtmc")
    assert read_domain({"domain": "model.prism"}, tmp_path, ()).name == str(tmp_path / "model.prism")
    found = read_domain({"domain": "particle-dance", "parameters": {"horizon": 20, "x": True}}, tmp_path, ())
    assert as_arguments(found, ["a:b"]) == [
        "particle-dance",
        "--set",
        "horizon=20",
        "--set",
        "x=True",
        "--trust",
        "a:b",
    ]


def test_a_link_to_a_model_elsewhere_is_refused(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "model.prism").write_text("dtmc")
    folder = tmp_path / "runs"
    folder.mkdir()
    (folder / "model.prism").symlink_to(tmp_path / "elsewhere" / "model.prism")
    with pytest.raises(PsycoError, match="no model"):
        read_domain({"domain": "model.prism"}, folder, ())


@pytest.mark.parametrize("name", ["../x", "a/b", ".hidden", "-x", "x" * 65, "a b", "x\n", 3])
def test_names_of_runs_stay_in_the_folder(name, tmp_path):
    with pytest.raises(PsycoError):
        read_run_name({"name": name}, tmp_path, "CartPole-v1")


def test_a_run_gets_a_free_name(tmp_path):
    assert read_run_name({}, tmp_path, "CartPole-v1") == "CartPole-v1-1"
    (tmp_path / "CartPole-v1-1").mkdir()
    assert read_run_name({}, tmp_path, "CartPole-v1") == "CartPole-v1-2"
    assert read_run_name({}, tmp_path, "CartPole-v1", {"CartPole-v1-2"}) == "CartPole-v1-3"
    assert read_run_name({}, tmp_path, "../../x:y") == "x-y-1"
    with pytest.raises(PsycoError, match="exists already"):
        read_run_name({"name": "CartPole-v1-1"}, tmp_path, "CartPole-v1")


def test_numbers_and_texts():
    assert read_whole({"n": 5.0}, "n", 1, 9, 1) == 5
    for bad in (0, 10, 2.5, True, "5", None, float("nan")):
        with pytest.raises(PsycoError):
            read_whole({"n": bad}, "n", 1, 9, 1)
    for bad in (0, 1, "0.5", float("nan"), None):
        with pytest.raises(PsycoError):
            read_fraction({"p": bad}, "p", 0.5)
    for bad in (3, "x" * 6000, "a\0b", "\ud800"):
        with pytest.raises(PsycoError):
            read_requirement({"requirement": bad})
