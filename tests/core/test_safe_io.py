"""A file is read whole, or refused at once with an error that names it."""

import os
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from psyco._src.core import files
from psyco._src.core.errors import MissingFileError, RunError
from psyco._src.core.files import check_folder, from_json, from_toml, read_bytes, read_text


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(os.path.relpath(path))  # socket names must be short


def test_a_file_is_read_whole(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"\0\xffabc")
    (tmp_path / "empty").touch()
    assert read_bytes(tmp_path / "file", "policy") == b"\0\xffabc"
    assert read_bytes(tmp_path / "empty", "policy") == b""


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (os.mkfifo, "it is a pipe"),
        (os.mkdir, "Is a directory"),
        (_socket, "No such device or address"),
        (lambda path: path.symlink_to("/dev/zero"), "it is a device"),
        (lambda path: path.symlink_to(path), "Too many levels of symbolic links"),
    ],
    ids=["pipe", "folder", "socket", "device", "loop"],
)
def test_what_is_no_file_is_refused_and_named(tmp_path: Path, make: Callable[[Path], None], words: str) -> None:
    make(path := tmp_path / "policy.safetensors")
    with pytest.raises(RunError, match=f"cannot read the policy .*policy.safetensors: {words}"):
        read_bytes(path, "policy")


@pytest.mark.parametrize(
    ("name", "words"),
    [("x" * 5000, "File name too long"), ("a\0b", "null byte"), ("", "no file of that name")],
)
def test_a_name_that_no_file_can_have_is_refused(name: str, words: str) -> None:
    with pytest.raises(RunError, match=words):
        read_bytes(name, "policy")


def test_a_missing_file_has_an_error_class(tmp_path: Path) -> None:
    with pytest.raises(MissingFileError, match="there is no file of that name"):
        read_bytes(tmp_path / "nowhere", "policy")


def test_a_file_beyond_its_limit_is_refused_without_reading_it(tmp_path: Path) -> None:
    path = tmp_path / "huge"
    with path.open("wb") as file:
        file.truncate(2**42)  # takes no room
    with pytest.raises(RunError, match="at most 1,048,576 are read"):
        read_bytes(path, "requirement")


def test_what_is_appended_while_reading_is_left_out_or_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"first")
    fstat = os.fstat

    def grow(descriptor: int) -> os.stat_result:
        found = fstat(descriptor)
        with path.open("ab") as file:
            file.write(b" second")
        return found

    monkeypatch.setattr(files.os, "fstat", grow)
    assert read_bytes(path, "policy", growing=True) == b"first"
    with pytest.raises(RunError, match="it changed while it was read"):
        read_bytes(path, "policy")


def test_a_link_may_lead_elsewhere_in_the_folder_but_not_out_of_it(tmp_path: Path) -> None:
    run = tmp_path / "run"
    (run / "inner").mkdir(parents=True)
    (run / "file").write_text("own")
    (tmp_path / "secret").write_text("other")
    (run / "inner" / "link").symlink_to(run / "file")
    (run / "out").symlink_to(tmp_path / "secret")
    (run / "folder").symlink_to(tmp_path)
    assert read_text(run / "inner" / "link", "policy", inside=run) == "own"
    for path in (run / "out", run / "folder" / "secret"):
        with pytest.raises(RunError, match="a link out of"):
            read_text(path, "policy", inside=run)


def test_nothing_is_written_in_a_folder_with_links_out_of_it_or_pipes(tmp_path: Path) -> None:
    run = tmp_path / "run"
    (run / "checkpoints").mkdir(parents=True)
    (run / "latest").symlink_to("checkpoints")
    check_folder(run)
    (run / "checkpoints" / "out").symlink_to(tmp_path)
    with pytest.raises(RunError, match="out is a link out of"):
        check_folder(run)
    check_folder(run, exclude=("checkpoints",))
    (run / "checkpoints" / "out").unlink()
    os.mkfifo(run / "run.log")
    with pytest.raises(RunError, match=r"run.log is a pipe; remove it first"):
        check_folder(run)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[" * 100_000, "nested too deeply"),
        ('{"a":' * 400 + "1" + "}" * 400, "nested too deeply"),
        ("[NaN]", "nan is not a finite number"),
        ('{"a": 1e999}', "inf is not a finite number"),
        ("[1" + "0" * 30 + "]", "too large"),
        ("[1" + "0" * 5000 + "]", "digits"),
        ("{", "damaged, or no JSON file"),
    ],
)
def test_json_that_could_do_harm_is_refused(text: str, words: str) -> None:
    with pytest.raises(RunError, match=f"certificate.json is .*{words}"):
        from_json(text, "certificate.json")


@pytest.mark.parametrize(
    "text",
    ["a = " + "[" * 100_000, "a" + ".a" * 300_000 + " = 1", "['a'" + ' . "b"' * 100_000 + "]"],
    ids=["list", "dotted key", "header"],
)
def test_toml_that_is_nested_too_deeply_is_refused_at_once(text: str) -> None:
    """Python's parser alone would take an hour for these keys."""
    with pytest.raises(RunError, match=r"config.toml is not a TOML file: it is nested too deeply"):
        from_toml(text, "config.toml")
    assert from_toml('a.b."c.d" = "x.' + "y." * 19 + '"', "config.toml") == {"a": {"b": {"c.d": "x." + "y." * 19}}}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a = " + "[" * 10_000, "nested too deeply"),
        ("a = " + "[" * 50 + "]" * 50, "nested too deeply"),
        (".".join("a" * 2000) + " = 1", "nested too deeply"),
        ("a = nan", "nan is not a finite number"),
        ("a = 99999999999999999999", "too large"),
        ("a", "is not a TOML file"),
    ],
)
def test_toml_that_could_do_harm_is_refused(text: str, words: str) -> None:
    with pytest.raises(RunError, match=f"config.toml is not a TOML file.*{words}|{words}"):
        from_toml(text, "config.toml")


def test_what_our_own_files_hold_is_read() -> None:
    assert from_json('{"a": [1, 2.5, null, "x", {"b": true}]}', "f") == {"a": [1, 2.5, None, "x", {"b": True}]}
    assert from_toml("a = [[1, 2], [3]]\n[b]\nc = 1.5", "f") == {"a": [[1, 2], [3]], "b": {"c": 1.5}}


# ---- writing -------------------------------------------------------------------------------------------------------


def test_a_write_during_another_write_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With one temporary name for both, the second took the file of the first away: "No such file or directory"."""
    path = tmp_path / "tuning.toml"
    sync, contents = files.sync, iter([b"second", b"third"])

    def write_meanwhile(descriptor: int) -> None:
        sync(descriptor)
        if (content := next(contents, None)) is not None:
            files.write(path, content)

    monkeypatch.setattr(files, "sync", write_meanwhile)
    files.write(path, b"first")
    assert path.read_bytes() == b"first"  # the last to finish
    assert [entry.name for entry in tmp_path.iterdir()] == ["tuning.toml"]


def test_many_writers_and_a_reader_see_whole_files_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader saw an empty file: one writer renamed the file that another had just created."""
    path = tmp_path / "state.json"
    monkeypatch.setattr(files, "sync", lambda descriptor: None)  # faster: more races
    contents = [bytes([65 + k]) * 1000 for k in range(4)]
    files.write(path, contents[0])

    def write_often(content: bytes) -> None:
        for _ in range(100):
            files.write(path, content)

    with ThreadPoolExecutor(len(contents)) as pool:
        writers = [pool.submit(write_often, content) for content in contents]
        while not all(writer.done() for writer in writers):
            assert path.read_bytes() in contents
        for writer in writers:
            writer.result()
    assert [entry.name for entry in tmp_path.iterdir()] == ["state.json"]


def test_a_planted_link_at_the_temporary_name_is_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The name cannot be guessed; even if it could, the write fails instead."""
    (tmp_path / "secret").write_text("precious")
    monkeypatch.setattr(files.secrets, "token_hex", lambda size: "0" * 2 * size)
    (tmp_path / f".file.{'0' * 16}.tmp").symlink_to(tmp_path / "secret")
    with pytest.raises(RunError, match="File exists"):
        files.write(tmp_path / "file", b"new")
    assert (tmp_path / "secret").read_text() == "precious" and not (tmp_path / "file").exists()


def test_leftovers_of_kills_are_recognised_and_removed(tmp_path: Path) -> None:
    leftover, of_another, plain = (
        tmp_path / name for name in (f".a.{'0' * 16}.tmp", f".b.{'f' * 16}.tmp", ".config.tmp")
    )
    for path in (leftover, of_another, plain):
        path.touch()
    assert [files.target_of(path.name) for path in (leftover, of_another, plain)] == ["a", "b", None]
    files.remove_leftovers(tmp_path, exclude=["b"])
    assert sorted(tmp_path.iterdir()) == sorted([of_another, plain])
    files.remove_leftovers(tmp_path / "nowhere")
