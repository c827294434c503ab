"""What is fuzzed: for each kind of input, how to make one that is almost right, and what is done with it.

An attempt ends with an answer or with an error of ours; anything else is a finding. Where an answer can be checked (by
printing and reading it again, say) it is, with `assert`.
"""

import asyncio
import contextlib
import csv
import dataclasses
import io
import json
import os
import socket
import struct
import sys
import threading
from collections.abc import Callable
from contextlib import chdir, redirect_stderr, redirect_stdout
from functools import cache, cached_property
from pathlib import Path
from random import Random
from typing import Any, ClassVar, NamedTuple
from unittest.mock import patch

import gymnasium
import matplotlib
import numpy as np
import typer.main

import psyco
import psyco._src.paper.reproduction  # commands import it late, which takes longer than any input may
from psyco._src.cli import main
from psyco._src.cli.compare import CURVES, _curve, sparkline
from psyco._src.core import files
from psyco._src.core.errors import PsycoError
from psyco._src.core.files import from_json, json_digest
from psyco._src.envs import registry
from psyco._src.envs.actions import Discrete
from psyco._src.envs.registry import DomainDescription, make_from_description
from psyco._src.field.drift import Reference
from psyco._src.field.service import open_session
from psyco._src.logic.ast import Signal, walk
from psyco._src.logic.batch_monitor import compile_monitor
from psyco._src.logic.parser import parse
from psyco._src.logic.requirement import outcome_requirement
from psyco._src.policies.external import open_policy
from psyco._src.policies.network import Network
from psyco._src.policies.serialization import Policy, load_policy
from psyco._src.reports.field_page import watch_page
from psyco._src.reports.live_server import PageServer
from psyco._src.reports.run_page import LiveRun, compare_page, run_page
from psyco._src.runs.checkpoint import FORMAT, load_checkpoint, save_checkpoint
from psyco._src.runs.checkpoint import CheckpointInfo as CheckpointAbout
from psyco._src.runs.config import read_config
from psyco._src.runs.run_summary import summarize
from psyco._src.runs.store import load_metrics, load_run_info, read_run
from psyco._src.verification.certificate import Certificate
from psyco._src.verification.outcomes import verify_outcomes
from psyco._src.verification.recorded_traces import read_traces
from psyco._src.verification.recordings import read_outcomes
from tests.fuzz import study_kinds
from tests.fuzz.mutate import WORDS, as_json, mutate_bytes, mutate_json, nudge_json, requirement
from tests.runs.small import CONFIG, begun

# A watch with everything that a state can hold: episodes with numbers, drift, an alarm, expected values and rates.
WATCHED = '"a": P>=0.5 [ G x < 3 ]; "b": R{x}<=2 [ C ] within [0,10]; "c": R{x}<=0.5 [ S ] within [0,5]'
REFERENCE = Reference(100, np.zeros(2), np.ones(2))
TRACES = b"episode,x,obs[0],obs[1],terminated\n" + b"".join(
    b"%d,4,9,0,0\n%d,1,9,0,1\n" % (i, i) for i in range(1, 81, 2)
)
FIVE_EPISODES = b"".join(TRACES.splitlines(keepends=True)[:11])


def watcher(state: dict[str, Any] | None) -> psyco.FieldTest:
    return psyco.FieldTest(WATCHED, None if state else 1000, horizon=5, state=state)


class Place:
    """A folder to work in: a small run, and right inputs to start from, each made when it is first asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.run = begun(folder / "run")
        (self.run / "checkpoints").mkdir()
        (folder / "secret").write_text("precious")
        self.file = folder / "input"
        matplotlib.get_configdir(), matplotlib.get_cachedir()  # which it makes once

    @cached_property
    def server(self) -> tuple[asyncio.AbstractEventLoop, Callable[[], asyncio.Protocol]]:
        """A loop in a thread, and what makes connections to the server of a live page; they use no port."""
        from uvicorn.server import ServerState

        from psyco._src.reports.short_connections import ShortConnection

        made = PageServer(LiveRun(self.run))
        made.close()
        config, loop = made.server.config, asyncio.new_event_loop()
        config.load()
        threading.Thread(target=loop.run_forever, daemon=True).start()
        return loop, lambda: ShortConnection(config, ServerState(), {}, loop)

    def exchange(self, data: bytes) -> bytes:
        """Return what the server of a live page answers to a client that sends some bytes and nothing more."""
        loop, connection = self.server
        ours, theirs = socket.socketpair()
        with ours:
            asyncio.run_coroutine_threadsafe(loop.connect_accepted_socket(connection, theirs), loop).result()
            answer = b""
            with contextlib.suppress(ConnectionError):  # it may answer, and close, before all of it has come
                ours.sendall(data)
                ours.shutdown(socket.SHUT_WR)
            with contextlib.suppress(ConnectionError):
                while piece := ours.recv(2**16):
                    answer += piece
        return answer

    @cached_property
    def configuration(self) -> bytes:
        return (self.run / "config.toml").read_bytes()

    @cached_property
    def metrics(self) -> bytes:
        return (self.run / "metrics.csv").read_bytes()

    @cached_property
    def description(self) -> dict[str, Any]:
        return json.loads((self.run / "run.json").read_text())

    @cached_property
    def certificate(self) -> dict[str, Any]:
        made = verify_outcomes(np.arange(50) % 25 > 0, parse('"a": P>=0.5 [ F "x" ] & C>=0.9'), issued="2026")
        return json.loads(dataclasses.replace(made, domain="particle-dance", policy="0" * 64).to_json())

    @cached_property
    def policy(self) -> Policy:
        theta = np.linspace(-1, 1, 18, dtype=np.float32)
        return Policy(theta, Network(4, 2, hidden=3), Discrete(2), "CartPole-v1", {"horizon": 100})

    @cached_property
    def checkpoint(self) -> bytes:
        config = CONFIG.to_toml()
        about = CheckpointAbout(3, CONFIG.identity, config, 1_700_000_000, 10, "0" * 64)
        save_checkpoint(self.run, about, {"theta": np.zeros(3, np.float32), "step": np.int32(1)})
        return next((self.run / "checkpoints").iterdir()).read_bytes()

    @cached_property
    def watch(self) -> dict[str, Any]:
        path = self.folder / "watch.json"
        session = open_session(watcher, traces=True, state=path)
        session.set_reference(REFERENCE)
        list(session.read_stream([TRACES], should_stop=lambda _: False))
        content: dict[str, Any] = json.loads(path.read_bytes())
        del content["checksum"]
        return content

    @cached_property
    def onnx(self) -> bytes:
        from psyco._src.policies.onnx_export import to_onnx

        return to_onnx(self.policy)


class Kind(NamedTuple):
    """One kind of input, as bytes."""

    make: Callable[[Random, Place], bytes]
    attempt: Callable[[bytes, Place], None]


# ---- requirements and configurations -----------------------------------------------------------------------------


def _make_requirement(rng: Random, place: Place) -> bytes:
    data = requirement(rng).encode()
    return data if rng.random() < 0.3 else mutate_bytes(rng, data, WORDS)


def _read_requirement(data: bytes, place: Place) -> None:
    text = data.decode(errors="surrogateescape")
    found = parse(text)
    assert parse(str(found)) == found
    formulas = [constraint.formula for constraint in found.constraints]
    monitor = compile_monitor(formulas)
    indices: dict[str, int | None] = dict.fromkeys(monitor.signals)
    for node in (node for formula in formulas for node in walk(formula) if isinstance(node, Signal)):
        if node.index is not None:
            indices[node.name] = max(node.index, indices[node.name] or 0)
    if max((index or 0 for index in indices.values()), default=0) > 100:
        return  # nobody has so many
    path = {name: np.ones(3 if index is None else (3, index + 1)) for name, index in indices.items()}
    satisfied, cost = monitor({"step": np.arange(3), **path})
    assert ((cost == 0) == satisfied).all()


def _make_configuration(rng: Random, place: Place) -> bytes:
    words = [
        b"[domain]\n",
        b"[learner]\n",
        b"[settings]\n",
        b"learning_rate = nan\n",
        b"wrappers = ['os:system']\n",
        b'"""',
        b"a.b.c = 1\n",
    ]
    return mutate_bytes(rng, place.configuration, words)


def _read_configuration(data: bytes, place: Place) -> None:
    config = read_config(_text(data), "config.toml")
    assert read_config(config.to_toml(), "config.toml") == config
    run_page(dataclasses.replace(read_run(place.run), config=config))


def _make_domain(rng: Random, place: Place) -> bytes:
    # What only a file names: code, and files, one of which is a pipe that nobody writes to.
    code = rng.choice(["os:system", "os:system", "os.path", "pipe", "./pipe", "secret", "../place/secret", "/dev/zero"])
    shapes = [code, [code], [[code]], {code: 1}, {"x": code}, {"x": [code]}, [{code: code}], [], {}]
    key = rng.choice(["wrappers", "signals", "name", "source", "xml_file", "text"])
    parameters = {"horizon": 5, key: rng.choice(shapes)}
    name = rng.choice(["CartPole-v1", "particle-dance", "obstacle-run", "FuzzReader-v0", "FuzzReader-v0", code])
    return as_json(mutate_json(rng, {"name": name, "parameters": parameters})).encode(errors="replace")


class Reader(gymnasium.Env[Any, Any]):
    """An environment that is known by its id, and reads what its parameters name."""

    named: ClassVar[list[str]] = []
    observation_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, **parameters: Any) -> None:
        self.named += registry.texts(parameters)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        return np.zeros(1, np.float32), 0.0, False, False, {}


gymnasium.register("FuzzReader-v0", Reader)


def _make_again(data: bytes, place: Place) -> None:
    about = from_json(data, "the description")
    if isinstance(about, dict) and isinstance(parameters := about.get("parameters"), dict):
        with patch.object(registry, "import_module") as imported, chdir(place.folder):
            if not os.path.lexists("pipe"):
                os.mkfifo("pipe")
            Reader.named.clear()
            try:
                make_from_description(DomainDescription(str(about.get("name")), parameters))
            finally:
                assert not imported.called, "it imports what nobody trusts"
                assert not any(map(os.path.lexists, Reader.named)), "it reads a file that nobody trusts"


# ---- the files of a run --------------------------------------------------------------------------------------------


def _make_certificate(rng: Random, place: Place) -> bytes:
    content = rng.choice([mutate_json, nudge_json])(rng, place.certificate)
    if isinstance(content, dict) and rng.random() < 0.7:  # anybody can compute a checksum
        rest = {key: value for key, value in content.items() if key != "checksum"}
        content = {**rest, "checksum": json_digest(rest)}
    data = as_json(content).encode(errors="replace")
    return mutate_bytes(rng, data) if rng.random() < 0.3 else data


def _read_certificate(data: bytes, place: Place) -> None:
    text = _text(data)
    found = Certificate.from_json(text, strict=False)
    record = dataclasses.replace(read_run(place.run), certificate=found, state="finished")
    json.dumps(summarize(record), allow_nan=False)
    assert str(found) and repr(found) and run_page(record) and compare_page([record, record])
    assert Certificate.from_json(text).to_json() == text


def _make_description(rng: Random, place: Place) -> bytes:
    content = mutate_json(rng, place.description)
    if isinstance(content, dict) and rng.random() < 0.8:
        content.pop("sha256", None)
        content = {**content, "sha256": files.digest(json.dumps(content, sort_keys=True).encode())}
    return as_json(content).encode(errors="replace")


def _read_description(data: bytes, place: Place) -> None:
    path = place.run / "run.json"
    whole = path.read_bytes()
    path.write_bytes(data)
    try:
        load_run_info(place.run)
        json.dumps(summarize(read_run(place.run)), allow_nan=False)
        run_page(read_run(place.run))
    finally:
        path.write_bytes(whole)


def _make_metrics(rng: Random, place: Place) -> bytes:
    if rng.random() < 0.5:
        return mutate_bytes(rng, place.metrics, [b"\n0,", b",,", b'"', b"episodes", b"1e308"])
    rows = [line.split(",") for line in place.metrics.decode().splitlines()]
    for _ in range(rng.randint(1, 5)):
        row = rng.choice(rows)
        row[rng.randrange(len(row))] = rng.choice(
            ["", "nan", "-inf", "1e99", "-1e99", "1e400", "0", "-1", "5", "x", "9" * 25]
        )
    return "".join(",".join(row) + "\n" for row in rows * rng.randint(1, 2)).encode()


def _read_metrics(data: bytes, place: Place) -> None:
    path = place.run / "metrics.csv"
    path.write_bytes(data)
    try:
        metrics = load_metrics(place.run)
        assert len(list(csv.reader(io.StringIO(metrics.to_csv(header=False))))) == metrics.rows
        record = read_run(place.run)
        json.dumps(summarize(record), allow_nan=False)
        assert run_page(record) and compare_page([record, record])
        for name in CURVES:
            curve = _curve(record, name, max(1, record.episodes))
            known = curve[~np.isnan(curve)]
            sparkline(curve, *((known.min(), known.max()) if len(known) else (0.0, 0.0)))
    finally:
        path.write_bytes(place.metrics)


def _make_checkpoint(rng: Random, place: Place) -> bytes:
    if rng.random() < 0.3:
        return mutate_bytes(rng, place.checkpoint)
    _, _, body = place.checkpoint.partition(b"\n")
    head, _, tensors = body.partition(b"\n")
    if rng.random() < 0.5:
        head = json.dumps(mutate_json(rng, json.loads(head))).encode(errors="replace")
    else:
        tensors = mutate_bytes(rng, tensors)
    body = head + b"\n" + tensors
    return FORMAT + b" " + files.digest(body).encode() + b"\n" + body


def _read_checkpoint(data: bytes, place: Place) -> None:
    path = place.run / "checkpoints" / "000000003.ckpt"
    path.write_bytes(data)
    found = load_checkpoint(path)
    read_config(found.info.config, "the copy")
    found.restore({"theta": np.zeros(3, np.float32), "step": np.int32(1)})


def _make_watch(rng: Random, place: Place) -> bytes:
    content = rng.choice([mutate_json, nudge_json])(rng, place.watch)
    if isinstance(content, dict) and rng.random() < 0.9:  # anybody can compute a checksum
        content = {**content, "checksum": json_digest(content)}
    data = as_json(content).encode(errors="replace")
    return mutate_bytes(rng, data) if rng.random() < 0.1 else data


def _read_watch(data: bytes, place: Place) -> None:
    path = place.folder / "watch.json"
    path.write_bytes(data)
    for _ in range(2):  # what it has written it reads again
        session = open_session(watcher, traces=True, state=path)
        session.set_reference(REFERENCE)
        before = session.field_test.episodes
        list(session.read_stream([FIVE_EPISODES], should_stop=lambda _: False))
        assert before <= session.field_test.episodes <= before + 10
        assert watch_page(session, "the input")


# ---- recordings and policies ---------------------------------------------------------------------------------------


def _make_outcomes(rng: Random, place: Place) -> bytes:
    seeds = [b"1\n0\n" * 20, b"a,b\n1,0\ntrue,false\n", b"\xef\xbb\xbf1\r\n0\r\n", b'"a"\n1\n']
    return mutate_bytes(rng, rng.choice(seeds), [b"1\n", b"0,1\n", b"true", b"2"])


def _read_outcomes(data: bytes, place: Place) -> None:
    wanted = outcome_requirement('"a": P>=0.5 & C>=0.9')
    outcomes = read_outcomes(data, wanted, origin="the file")
    found = verify_outcomes(outcomes, wanted)
    assert found.episodes <= len(outcomes.columns[0])


def _make_traces(rng: Random, place: Place) -> bytes:
    seeds = [
        b"episode,x,obs[0],obs[1],reward\n0,1,2,3,4\n0,2,2,2,1\n1,0,0,0,0\n",
        b'{"episode": 0, "x": 1, "obs": [1, 2], "reward": 1}\n{"episode": 1, "x": 2, "obs": [1, 2], "reward": 0}\n',
    ]
    if rng.random() < 0.5:
        return mutate_bytes(rng, rng.choice(seeds), [b"\n0,", b"obs[7]", b"[1, [2]]", b"{}", b"episode", b"\n{"])
    numbers = ["0", "1", "-1", "1e308", "-0.0", "0.1", "5", "1e-320", "99", rng.choice(["nan", "inf", "", "x", "true"])]
    rows = [[str(i // 3), *(rng.choice(numbers) for _ in range(4))] for i in range(rng.randint(1, 9))]
    return "".join(",".join(row) + "\n" for row in [["episode", "x", "obs[0]", "obs[1]", "reward"], *rows]).encode()


def _read_traces(data: bytes, place: Place) -> None:
    wanted = parse("P>=0.5 [ G (x >= 0 & obs[1] < 5 & return < 100) ] & C>=0.9")
    assert len(read_traces(data, wanted, origin="the file").columns) == 1


def _make_policy(rng: Random, place: Place) -> bytes:
    data = place.policy.to_bytes()
    if rng.random() < 0.4:
        return mutate_bytes(rng, data)
    (size,) = struct.unpack("<Q", data[:8])
    header, tensors = json.loads(data[8 : 8 + size]), data[8 + size :]
    if rng.random() < 0.8:
        about = mutate_json(rng, json.loads(header["__metadata__"]["psyco"]))
        header["__metadata__"]["psyco"] = json.dumps(about)
    else:
        header = mutate_json(rng, header)
    if rng.random() < 0.2:
        tensors = struct.pack("<f", float("nan")) * (len(tensors) // 4)
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + tensors


def _read_policy(data: bytes, place: Place) -> None:
    place.file.write_bytes(data)
    found = load_policy(place.file)
    place.file.write_bytes(found.to_bytes())
    assert load_policy(place.file).to_bytes() == found.to_bytes()


def _make_onnx(rng: Random, place: Place) -> bytes:
    return mutate_bytes(rng, place.onnx, [b"/etc/passwd", b"location", b"\x00" * 8, b"\xff" * 8])


def _read_onnx(data: bytes, place: Place) -> None:
    path = place.folder / "input.onnx"
    path.write_bytes(data)
    open_policy(str(path)).load()  # type: ignore[union-attr]


# ---- the live page -------------------------------------------------------------------------------------------------


def _make_request(rng: Random, place: Place) -> bytes:
    seeds = [
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"HEAD /data.json?version=1 HTTP/1.0\r\nHost: 127.0.0.1:80\r\nAccept: */*\r\n\r\n",
        b"GET http://[::1]/ HTTP/1.1\r\nHost: [::1]:1\r\n\r\n",
        b"GET /\r\n\r\n",
    ]
    words = [
        b"POST",
        b"Host: evil\r\n",
        b"/../secret",
        b"%2e%2e/",
        b"//",
        b"HTTP/9.9",
        b"?",
        b"#",
        b"[",
        b": ",
        b"\r\n\r\n",
        b"X: y\r\n" * 200,
    ]
    return mutate_bytes(rng, rng.choice(seeds), words)


def _ask(data: bytes, place: Place) -> None:
    sent = place.exchange(data)
    assert b"precious" not in sent
    assert sent[:9] in (b"", b"HTTP/1.1 ")
    assert sent[9:12] not in (b"500", b"503"), sent[-200:]


# ---- command lines -------------------------------------------------------------------------------------------------

# Complete ones, each wrong in something that is found before anything is learned or played.
LINES = [
    ["runs", "RUN"],
    ["runs", "."],
    ["runs", "RUN", "--json"],
    ["compare", "RUN", "RUN"],
    ["compare", "RUN", "RUN", "--out", "OUT"],
    ["report", "RUN"],
    ["report", "RUN", "--out", "OUT"],
    ["export", "NAME", "--onnx", "OUT"],
    ["export", "NAME", "--c", "OUT"],
    ["resume", "NAME"],
    ["resume", "RUN", "--episodes", "NAME", "--steps", "5"],
    ["exact", "NAME", "--require", "TEXT"],
    ["render", "NAME", "--out", "OUT"],
    ["verify", "NAME", "--require", "TEXT"],
    ["verify", "--outcomes", "NAME", "--require", "TEXT"],
    ["verify", "--outcomes", "DATA", "--require", "TEXT", "--out", "OUT"],
    ["verify", "--traces", "DATA", "--require", "TEXT"],
    ["verify", "--replay", "NAME", "NAME"],
    ["verify", "NAME", "--require", "TEXT", "--width", "NAME"],
    ["watch", "--certificate", "TEXT", "--outcomes", "DATA", "--page", "OUT"],
    ["watch", "--certificate", "NAME", "--outcomes", "DATA", "--state", "OUT"],
    ["watch", "--certificate", "P>=0.9", "--outcomes", "NAME"],
    ["watch", "--certificate", "P>=0.9", "--traces", "DATA", "--range", "NAME"],
    ["plan", "TEXT", "--max-episodes", "3"],
    ["plan", "TEXT", "--max-episodes", "3", "--mean", "NAME", "--spread", "NAME"],
    ["plan", "P>=0.9", "--max-episodes", "3", "--method", "NAME"],
    ["plan", "P>=0.9", "--max-episodes", "3", "--option", "NAME"],
    ["check", "NAME"],
    ["check", "NAME", "--set", "NAME"],
    ["domains", "NAME"],
    ["synthesize", "--config", "NAME"],
    ["synthesize", "NAME", "--require", "TEXT"],
    ["synthesize", "particle-dance", "--require", "no requirement", "--set", "NAME", "--out", "OUT"],
    ["NAME"],
    ["synthesize", "particle-dance", "--require", "P>=0.5 [ F step > 0 ]", "--set", "x=NAME"],
    ["--NAME"],
    ["reproduce", "nothing", "NAME"],
]
NAMES = [
    "",
    ".",
    "/",
    "[/red]",
    ":dog:",
    "x" * 300,
    "x" * 5000,
    "a\0b",
    "\udcff",
    "\x1b[31m",
    "nowhere",
    "secret",
    "/dev/null",
    "/dev/zero",
    "/proc/self/mem",
    "-",
    "--",
    "--json",
    "a:b",
    ":",
    "python:",
    "sb3:",
    "sb3:x:y",
    "module:name",
    "..",
    "-1",
    "1e9",
    "[" * 300,
    "x.onnx",
    "x.pt",
    "x.pkl",
    "a=b",
    "=",
    "a=" + "(" * 300,
    "nan",
    "ü" * 200,
    "run/metrics.csv",
]
OUTS = [
    "",
    ".",
    "/",
    "x" * 300,
    "no/such/folder/x",
    "\0",
    "[/red].html",
    "page.html",
    "secret/x",
    "run/",
]


_built = cache(typer.main.get_command)  # once: it takes longer than most commands


def _make_line(rng: Random, place: Place) -> bytes:
    def filled(word: str) -> str:
        text = (mutate_bytes(rng, requirement(rng).encode(), WORDS)[:5000]).decode(errors="surrogateescape")
        replaced = {
            "RUN": "run",
            "NAME": rng.choice(NAMES),
            "OUT": rng.choice(OUTS),
            "TEXT": text,
            "DATA": "input",
        }
        for name, value in replaced.items():
            word = word.replace(name, value)
        if rng.random() < 0.05:
            word = mutate_bytes(rng, word.encode(errors="surrogateescape")).decode(errors="surrogateescape")
            word = word.lstrip("/")  # who asks for an output elsewhere gets it there
        return word

    return json.dumps([filled(word) for word in rng.choice(LINES)]).encode()


def _run_line(data: bytes, place: Place) -> None:
    line, before = json.loads(data), sys.argv
    status: Any = None
    place.file.write_bytes(b"1\n0\n")
    out, err = io.StringIO(), io.StringIO()
    sys.argv = ["psyco", "--no-compile-cache", *line]
    try:
        built = patch("typer.main.get_command", _built)
        with built, chdir(place.folder), redirect_stdout(out), redirect_stderr(err):
            main()
    except SystemExit as ended:
        status = ended.code
    finally:
        sys.argv = before
    assert status in (None, 0, 1, 2, 3), status
    assert status != 2 or err.getvalue(), "no word about what is wrong"
    assert "Traceback" not in err.getvalue()
    assert (place.folder / "secret").read_text() == "precious"
    assert (place.run / "config.toml").read_bytes() == place.configuration


def _text(data: bytes) -> str:
    """As `read_text` reads a file."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise PsycoError(str(error)) from None


KINDS = {
    "requirement": Kind(_make_requirement, _read_requirement),
    "configuration": Kind(_make_configuration, _read_configuration),
    "domain": Kind(_make_domain, _make_again),
    "certificate": Kind(_make_certificate, _read_certificate),
    "description": Kind(_make_description, _read_description),
    "metrics": Kind(_make_metrics, _read_metrics),
    "checkpoint": Kind(_make_checkpoint, _read_checkpoint),
    "study": Kind(study_kinds.make_study, study_kinds.read_studies),
    "tuning": Kind(study_kinds.make_tuning, study_kinds.read_tuning),
    "watch": Kind(_make_watch, _read_watch),
    "outcomes": Kind(_make_outcomes, _read_outcomes),
    "traces": Kind(_make_traces, _read_traces),
    "policy": Kind(_make_policy, _read_policy),
    "onnx": Kind(_make_onnx, _read_onnx),
    "request": Kind(_make_request, _ask),
    "command-line": Kind(_make_line, _run_line),
}
