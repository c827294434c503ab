"""The studio as a server: its answers, its limits, its processes."""

import asyncio
import contextlib
import http.client
import io
import json
import os
import random
import shlex
import shutil
import socket
import subprocess
import sys
import time
import zipfile
from collections import Counter
from pathlib import Path
from urllib.parse import unquote

import pytest

import psyco
from psyco._src.reports.live_server import REQUEST_SECONDS
from psyco._src.studio.serve import MAX_CONNECTIONS
from tests.runs.small import begun
from tests.studio.server import SOURCE, StudioProcess

pytestmark = pytest.mark.extra("starlette", "uvicorn", "onnx", "onnxruntime")

SMALL = {"domain": "particle-dance", "requirement": "P>=0.1 [ G (distance >= 0.0) ] & C>=0.8", "episodes": 2000}


@pytest.fixture(scope="module")
def studio(tmp_path_factory):
    found = StudioProcess(tmp_path_factory.mktemp("studio") / "runs")
    yield found
    found.stop()


def test_the_page_and_its_headers(studio):
    page = studio.get("")
    assert page.status == 200 and b"PSyCo Studio" in page.body
    assert "script-src 'self'" in page.headers["content-security-policy"]
    assert page.headers["referrer-policy"] == "no-referrer" and page.headers["x-content-type-options"] == "nosniff"
    assert "server" not in page.headers
    sizes = [len(page.body)]
    for name in (
        "studio.js",
        "editor.js",
        "plan.js",
        "play.js",
        "runs.js",
        "look.js",
        "draw.js",
        "studio.css",
        "page.css",
    ):
        found = studio.get(f"static/{name}")
        assert found.status == 200
        assert (
            b"http://" not in found.body.replace(b"http://www.w3.org/2000/svg", b"") and b"https://" not in found.body
        )
        sizes.append(len(found.body))
    assert sum(sizes) < 500_000
    assert studio.get("static/../web_app.py").status == 404 and studio.get("static/nothing.js").status == 404


def test_nothing_is_answered_without_the_secret_or_to_a_foreign_host(studio):
    assert studio.get("/").status == 404 and studio.get("/state").status == 404
    assert studio.get("state", {"Host": "evil.example"}).status == 403
    assert studio.post("check", {"requirement": "true"}, {"Origin": "http://evil.example"}).status == 403


def test_a_requirement_is_checked_and_explained(studio):
    found = studio.post(
        "check", {"requirement": "distance shall always be at least 0.1 with probability at least 0.85"}
    )
    assert found.json()["properties"][1]["formula"] == "P>=0.85 [ G (distance >= 0.1) ] & C>=0.95"
    assert (found.json()["p"], found.json()["c"]) == (0.85, 0.95)
    wrong = studio.post("check", {"requirement": "P>=0.9 [ G (a"})
    assert wrong.status == 400 and (wrong.json()["line"], wrong.json()["column"]) == (1, 14)
    assert "^" in wrong.json()["error"]


def test_sliders_write_into_the_requirement(studio):
    for text, changed in (
        ("P>=0.9 [ F a ]", "P>=0.8 [ F a ] & C>=0.99"),
        (
            "a shall always hold with probability at least 0.5",
            "the system shall always satisfy a with probability at least 0.8, 99% sure",
        ),
        ("Rmin=? [ C ]; P>=0.9 [ F a ]", "Rmin=? [ C ];\nP>=0.8 [ F a ] & C>=0.99"),
        ('"fast": Rmax=? [ C ]; P>=0.9 [ F a ]', '"fast": Rmax=? [ C ];\nP>=0.8 [ F a ] & C>=0.99'),
    ):
        assert studio.post("rewrite", {"requirement": text, "p": 0.8, "c": 0.99}).json()["requirement"] == changed


def test_a_formula_is_offered_as_a_sentence_and_a_sentence_as_a_formula(studio):
    def other(text):
        return studio.post("check", {"requirement": text}).json()["other"]

    formula = "P>=0.9 [ G (x >= 1) ] & C>=0.98"
    sentence = "x shall always be at least 1 with probability at least 0.9, 98% sure"
    assert (other(formula), other(sentence)) == (sentence, formula)
    assert other(f"Rmin=? [ C ]; {formula}") == f"minimise the return;\n{sentence}"


def test_the_groups_of_a_team_are_known(studio):
    team = studio.post("domain", {"domain": "particle-dance", "parameters": {"agents": 2}}).json()
    assert team["groups"] == {"agent": ["agent_0", "agent_1"]}
    assert "agent_1.distance" in {signal["name"] for signal in team["signals"]}
    assert studio.post("domain", {"domain": "particle-dance"}).json()["groups"] == {}


def test_the_first_requirement_is_that_of_the_domain(studio):
    source = (SOURCE / "psyco" / "_src" / "envs" / "particle_dance.py").read_text()
    assert f'"{studio.get("state").json()["requirement"]}"' in source


def test_signals_warnings_and_episodes_come_from_the_environment(studio):
    found = studio.post("domain", {"domain": "particle-dance"}).json()
    assert {"distance", "collisions"} <= {signal["name"] for signal in found["signals"]}
    asked = {"domain": "particle-dance", "requirement": "P>=0.85 [ G (distanse >= 0.1) ]"}
    wrong = studio.post("check", asked)
    assert wrong.status == 400 and "did you mean 'distance'?" in wrong.json()["error"]
    played = studio.post("play", {"domain": "particle-dance", "requirement": found["requirement"]}).json()
    assert [episode["satisfied"] for episode in played["episodes"]] == [True] * 3 + [False] * 3
    for episode in played["episodes"]:
        whole = episode["timelines"][0]["rows"][0]
        assert (whole["holds"][0] == "1") == episode["satisfied"] and len(whole["holds"]) == len(episode["shown"])


def test_no_request_imports_code(studio, tmp_path):
    trap = tmp_path / "imported"
    (studio.folder.parent / "trap_module.py").write_text(f"open({str(trap)!r}, 'w')\nEnv = None\n")
    for address in ("domain", "play", "check", "runs"):
        for name in ("trap_module:Env", "antigravity:x", "os:system"):
            found = studio.post(address, {**SMALL, "domain": name})
            assert found.status == 400, address
    assert not trap.exists()


def test_a_run_is_an_ordinary_run(studio):
    answer = studio.post("runs", {**SMALL, "name": "small", "seed": 3, "max_episodes": 500})
    assert answer.json()["name"] == "small"
    found = studio.wait(lambda state: any(run["name"] == "small" and run["verdict"] for run in state["runs"]))
    (row,) = [run for run in found["runs"] if run["name"] == "small"]
    run = psyco.open_run(studio.folder / "small")
    assert run.certificate is not None and run.certificate.verdict.name == row["verdict"]
    assert (run.config.settings.episodes, run.config.settings.max_episodes, run.config.settings.seed) == (2000, 500, 3)
    page = studio.get(f"runs/{row['id']}/")
    assert page.status == 200 and "frame-ancestors 'self'" in page.headers["content-security-policy"]
    assert studio.get(f"runs/{row['id']}/data.json").json()["data"]["state"] == "finished"
    policy = studio.get(f"runs/{row['id']}/files/policy.safetensors")
    assert policy.body == (studio.folder / "small" / "policy.safetensors").read_bytes()
    for name in ("run.log", "..%2f..%2fx", "looks.json"):
        assert studio.get(f"runs/{row['id']}/files/{name}").status == 404
    again = studio.post("runs", {**SMALL, "name": "small"})
    assert again.status == 400 and "exists already" in again.json()["error"]
    secret = studio.folder.parent / "secret.txt"
    secret.write_text("secret")
    (studio.folder / "small" / "requirement.props").unlink()
    (studio.folder / "small" / "requirement.props").symlink_to(secret)
    assert studio.get(f"runs/{row['id']}/files/requirement.props").status == 400
    stored = studio.folder / "small" / "counterexamples.html"
    stored.write_text("<script>alert(1)</script>")
    kept_apart = studio.get(f"runs/{row['id']}/counterexamples.html").headers["content-security-policy"]
    assert "sandbox allow-scripts" in kept_apart and "allow-same-origin" not in kept_apart


def test_runs_that_wait_have_names_and_requirements_of_their_own(studio):
    """Two tabs, no names, and no folder yet: each run learns its own requirement."""
    asked = [SMALL | {"episodes": 2_000_000, "requirement": f"P>=0.{i} [ G (distance >= 0.0) ]"} for i in (1, 2, 3)]
    names = [studio.post("runs", each).json()["name"] for each in asked]
    try:
        studio.wait(lambda state: any(job["run"] == names[0] and job["state"] == "running" for job in state["jobs"]))
        assert len(set(names)) == 3
        for name, each in zip(names, asked, strict=True):
            assert (studio.folder / ".studio" / f"{name}.props").read_text() == each["requirement"]
            again = studio.post("runs", {**SMALL, "name": name})
            assert again.status == 400 and "exists already" in again.json()["error"]
    finally:
        for name in reversed(names):
            assert studio.post(f"jobs/{name}/stop", {}).status == 200
    ended = studio.wait(lambda state: any(job["run"] == names[0] and job["state"] == "ended" for job in state["jobs"]))
    (stopped,) = [job for job in ended["jobs"] if job["run"] == names[0]]
    assert stopped["interrupted"] and "Traceback" not in stopped["log"]
    shutil.rmtree(studio.folder / names[0], ignore_errors=True)


def test_a_policy_is_exported_and_its_commands_repeat_it(studio, cli, tmp_path):
    """The exact command makes the same policy again, bit by bit."""
    studio.post("runs", {**SMALL, "name": "exported", "seed": 3})
    found = studio.wait(lambda state: any(run["name"] == "exported" and run["verdict"] for run in state["runs"]))
    (row,) = [run for run in found["runs"] if run["name"] == "exported"]
    onnx = studio.get(f"runs/{row['id']}/export/policy.onnx")
    assert onnx.status == 200 and onnx.headers["content-disposition"] == 'attachment; filename="policy.onnx"'
    archive = studio.get(f"runs/{row['id']}/export/policy-c.zip")
    with zipfile.ZipFile(io.BytesIO(archive.body)) as files:
        assert sorted(files.namelist()) == ["psyco_policy.c", "psyco_policy.h", "psyco_test.c"]
        assert b"A policy for particle-dance" in files.read("psyco_policy.h")
    for name in ("policy.exe", "..%2fx", "config.toml"):
        assert studio.get(f"runs/{row['id']}/export/{name}").status == 404
    words = shlex.split(row["command"])
    assert words[0] == "psyco" and cli(*words[1:]).status == 0
    again = studio.folder / "exported-again" / "policy.safetensors"
    assert again.read_bytes() == (studio.folder / "exported" / "policy.safetensors").read_bytes()
    assert cli(*shlex.split(row["replay"])[1:]).status == 0


def test_a_folder_of_a_stranger(studio, tmp_path):
    """Names that are markup, no Unicode, or commands; links that lead out of it; pages that somebody else made."""
    source = begun(tmp_path / "run")
    names = [b"<img src=x onerror=alert(1)>", b"x\xff\xfe", b"$(touch pwned)", b"a;b 'c' \"d\""]
    for name in names:
        target = os.fsencode(studio.folder) + b"/" + name
        shutil.copytree(os.fsencode(source), target)
    evil = studio.folder / "evil-front"
    evil.mkdir()
    (evil / "pareto.csv").write_text("x")
    (evil / "pareto.html").write_text("<script>parent.x = 1</script>")
    linked = studio.folder / "linked-front"
    linked.mkdir()
    (linked / "pareto.csv").write_text("x")
    (tmp_path / "secret.html").write_text("precious")
    (studio.folder / "link").symlink_to(source)
    (linked / "pareto.html").symlink_to(tmp_path / "secret.html")
    damaged = studio.folder / "damaged-study"
    damaged.mkdir()
    (damaged / "study.toml").write_text("[")
    circle = studio.folder / "circle"
    circle.mkdir()
    (circle / "config.toml").symlink_to(circle / "config.toml")
    pipes = studio.folder / "pipes"
    pipes.mkdir()
    for name in ("config.toml", "run.json", "metrics.csv", "study.toml"):
        os.mkfifo(pipes / name)
    try:
        found = studio.wait(
            lambda state: len(state["studies"]) == 3 and any("onerror" in r["name"] for r in state["runs"])
        )
        assert {"$(touch pwned)", "a;b 'c' \"d\""} <= {run["name"] for run in found["runs"]}
        (row,) = [run for run in found["runs"] if run["name"] == "$(touch pwned)"]
        for name in ("circle", "pipes"):
            (strange,) = [run for run in found["runs"] if run["name"] == name]
            assert strange["state"] == "damaged" and studio.get(f"runs/{strange['id']}/files/config.toml").status == 400
            assert studio.post(f"runs/{strange['id']}/stop", {}).status == 400
        (link,) = [run for run in found["runs"] if run["name"] == "link"]
        for change in ("resume", "counterexamples"):
            refused = studio.post(f"runs/{link['id']}/{change}", {})
            assert refused.status == 400 and "link is a link" in refused.json()["error"]
        assert "'" in row["command"] and shlex.split(row["command"])[3].endswith("$(touch pwned)/config.toml")
        (markup,) = [run for run in found["runs"] if "onerror" in run["name"]]
        assert b"<img src=x" not in studio.get(f"runs/{markup['id']}/").body
        rows = {each["name"]: each for each in found["studies"]}
        page = studio.get(f"studies/{rows['evil-front']['id']}/")
        policy = page.headers["content-security-policy"]
        assert "sandbox allow-scripts" in policy and "allow-same-origin" not in policy
        assert "script-src 'sha256-" in policy  # and its script does not run
        secret = studio.get(f"studies/{rows['linked-front']['id']}/")
        assert secret.status == 400 and b"precious" not in secret.body
        assert rows["damaged-study"]["problem"] and studio.get(f"studies/{rows['damaged-study']['id']}/").status == 400
    finally:
        for name in names:
            shutil.rmtree(os.fsencode(studio.folder) + b"/" + name)
        for path in (evil, linked, damaged, circle, pipes):
            shutil.rmtree(path)
        (studio.folder / "link").unlink()


def test_a_study_has_a_page_before_it_ends(studio, tmp_path):
    folder = studio.folder / "study"
    folder.mkdir()
    (folder / "study.toml").write_text(
        'title = "Two learners"\nseeds = 2\nrequirement = "P>=0.8 [ G distance >= 0.1 ]"\n'
        '[domain]\nname = "particle-dance"\n[settings]\nepisodes = 2000\n[grid]\nlearner = ["snes", "safe-es"]\n'
    )
    found = studio.wait(lambda state: any(each["name"] == "study" for each in state["studies"]))
    (row,) = [each for each in found["studies"] if each["name"] == "study"]
    assert (row["kind"], row["title"], row["cells"], row["begun"]) == ("study", "Two learners", 4, 0)
    page = studio.get(f"studies/{row['id']}/")
    assert page.status == 200 and b"Two learners" in page.body
    assert "sandbox" not in page.headers["content-security-policy"]
    shutil.rmtree(folder)


def test_one_studio_serves_a_folder_and_follows_no_link_out_of_it(studio, tmp_path):
    def start(folder):
        command = [sys.executable, "-P", "-m", "psyco", "studio", str(folder), "--no-open"]
        environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
        return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300, check=False)

    second = start(studio.folder)
    assert second.returncode == 2 and "in use by another process" in second.stderr
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / ".studio").symlink_to(tmp_path / "elsewhere")
    refused = start(tmp_path / "runs")
    assert refused.returncode == 2 and "is a link" in refused.stderr
    inside = start(begun(tmp_path / "run"))
    assert inside.returncode == 2 and "is a run; name the folder that it lies in" in inside.stderr
    assert not list((tmp_path / "elsewhere").iterdir())


JUNK = [
    "", None, 0, -1, 0.5, 100, 1e308, 2**70, True, "x", "../../etc/passwd", "\u0000", "\ud800", "😀", [], {}, [[]],
    {"a": {}}, "a" * 9000, "P>=0.9 [ G (", "<img src=x onerror=alert(1)>", "this:x", "CartPole-v1", ".studio",
    {"horizon": 3},
]  # fmt: skip
FIELDS = ("domain", "parameters", "requirement", "p", "c", "max_episodes", "episodes", "seed", "name", "policy")
OF_A_RUN = ("", "stop", "resume", "data.json", "files/config.toml", "counterexamples", "counterexamples.html")
OF_A_RUN += ("export/x", "export/policy.onnx", "files/..%2f..%2fx")


def random_request(rng, origin, token, keys):
    """A request that is almost right; its address is relative to the secret."""
    addresses = ["", "state", "check", "rewrite", "domain", "plan", "runs", "compare", "play", "static/studio.js"]
    addresses += ["nothing", "studies/", "studies/0123456789abcdef/", "jobs/x/stop", "events/x"]
    addresses += [f"runs/{key}/{rest}" for key in keys for rest in OF_A_RUN]
    address = rng.choice(addresses)
    body = {name: rng.choice(JUNK) for name in rng.sample(FIELDS, rng.choice([1, 2, len(FIELDS)]))}
    if rng.random() < 0.6:
        body = SMALL | body
    if rng.random() < 0.2:
        address = "".join(chr(rng.randrange(33, 127)) for _ in range(rng.randrange(12))).replace("#", "") or "x"
    if rng.random() < 0.2:
        address += rng.choice(["?version=%00", "?run=a&run=b", "/..;/", "%2e%2e/", "?" + "a" * 3000])
    raw = json.dumps(body).encode()
    if rng.random() < 0.3:
        raw = bytes(rng.randrange(256) for _ in range(rng.randrange(200)))
    headers = {"Origin": origin, "X-Studio-Token": token, "Content-Type": "application/json"}
    if rng.random() < 0.2:
        headers[rng.choice(list(headers))] = rng.choice(["", "null", "text/plain", "http://evil.example"])
    method = rng.choice(["GET", "POST", "POST", "POST", "HEAD", "PUT", "OPTIONS"])
    return method, address.removeprefix("/"), raw if method == "POST" else None, headers


def files_below(folder: Path) -> dict[str, int]:
    """Files, and how long each is."""
    found = (path for path in folder.rglob("*") if ".studio" not in path.parts)
    return {str(path.relative_to(folder)): path.lstat().st_size for path in found if path.name != ".lock"}


def test_fuzzed_requests_leave_no_trace(studio):
    keys = [run["id"] for run in studio.get("state").json()["runs"]] or ["0" * 16]
    rng, outside, statuses = random.Random(0), files_below(studio.folder.parent), set()
    for _ in range(300):
        method, address, body, headers = random_request(rng, studio.origin, studio.token, keys)
        if address.startswith(("domain", "play", "runs")) and method == "POST":
            continue  # they start processes: the next test has them
        with contextlib.suppress(http.client.InvalidURL, UnicodeError):  # the client refuses to send it
            found = studio.request(method, address, body, headers)
            while found.status == 429:  # wait for the limit, or it would be all that is tested
                time.sleep(0.5)
                found = studio.request(method, address, body, headers)
            statuses.add(found.status)
            assert found.status < 500, (method, address, body, found.body)
            assert b"Traceback" not in found.body
    assert {200, 400, 403, 404} <= statuses
    assert "Traceback" not in studio.errors.read_text()
    assert files_below(studio.folder.parent) == outside
    assert studio.get("").status == 200


async def ask(guard, method, address, body, headers):
    """Send a request to the application itself; return status and body."""
    path, _, query = address.partition("?")
    pairs = [(name.lower().encode(), value.encode()) for name, value in {"Host": "127.0.0.1:1", **headers}.items()]
    scope = {
        "type": "http", "method": method, "path": unquote(f"/{guard.token}/{path}"), "query_string": query.encode(),
        "headers": pairs, "http_version": "1.1", "scheme": "http", "root_path": "",
    }  # fmt: skip
    messages = [{"type": "http.request", "body": body or b""}]
    sent = []

    async def receive():
        return messages.pop(0) if messages else {"type": "http.disconnect"}

    async def send(message):
        sent.append(message)

    await guard(scope, receive, send)
    return sent[0]["status"], b"".join(message.get("body", b"") for message in sent[1:])


@pytest.mark.more
def test_ten_thousand_fuzzed_requests_leave_no_trace(tmp_path, monkeypatch, caplog):
    """Jobs are commands that do nothing; environments are made here, where an import would be seen."""
    from psyco._src.studio import jobs, request_guard, web_app, workbench

    monkeypatch.setattr(jobs, "psyco_command", lambda arguments: ["true"])
    monkeypatch.setattr(workbench, "SOUGHT_COMPILED", 6)
    monkeypatch.setattr(workbench, "AT_ONCE_COMPILED", 6)

    async def answer(self, request):
        found = await asyncio.to_thread(workbench.answer, json.dumps(request))
        if "error" in found:
            raise psyco.RunError(found["error"])
        return found

    monkeypatch.setattr(web_app.Workbench, "ask", answer)
    begun(tmp_path / "runs" / "mine")
    outside, statuses, done = files_below(tmp_path), Counter(), Counter()

    async def run():
        studio = web_app.Studio(tmp_path / "runs")
        guard = request_guard.RequestGuard(web_app.make_application(studio))
        guard.reads = guard.changes = request_guard.Bucket(10**9, 1.0)
        rng, application = random.Random(1), guard.inner
        async with application.router.lifespan_context(application):
            while not studio.state["ready"]:
                await asyncio.sleep(0.1)
            keys = [run["id"] for run in studio.state["runs"]]
            for _ in range(10_000):
                request = random_request(rng, "http://127.0.0.1:1", guard.token, keys)
                status, body = await ask(guard, *request)
                statuses[status] += 1
                done[request[1]] += request[0] == "POST" and status == 200
                assert status < 500 and b"Traceback" not in body, (request, body)
        jobs.wait_for(studio.jobs, 60)

    asyncio.run(run())
    assert all(statuses[status] > 100 for status in (200, 400, 403, 404)), statuses
    assert not [record for record in caplog.records if record.exc_info], caplog.text
    assert files_below(tmp_path) == outside
    assert "this" not in sys.modules
    assert min(done[each] for each in ("check", "rewrite", "domain", "plan", "play", "runs")) > 5, done


@pytest.mark.more
def test_clients_that_never_finish_a_request_do_not_keep_others_out(studio):
    """More than there is room for; one has been answered before. A page that is open is dropped by no one."""
    page = http.client.HTTPConnection("127.0.0.1", studio.port, timeout=60)
    page.request("GET", f"/{studio.token}/events")
    events = page.getresponse()
    assert events.readline().startswith(b"data: ")
    slow = []
    try:
        for i in range(MAX_CONNECTIONS + 5):
            slow.append(socket.create_connection(("127.0.0.1", studio.port), timeout=60))
            head = f"GET / HTTP/1.1\r\nHost: 127.0.0.1:{studio.port}\r\n"
            slow[-1].sendall((f"{head}\r\n{head}" if i == 0 else head).encode())
        assert studio.get("").status == 503
        time.sleep(2 * REQUEST_SECONDS + 1)
        assert studio.get("").status == 200
        for client in slow:
            with contextlib.suppress(ConnectionResetError):
                while client.recv(4096):
                    pass
        stream = events.fp.raw._sock
        stream.setblocking(False)
        try:
            received = stream.recv(1)
        except BlockingIOError:
            received = b"nothing new"
        assert received  # it would be empty if it were closed
    finally:
        page.close()
        for client in slow:
            client.close()


def test_a_missing_extra_is_named(tmp_path):
    code = "import sys; sys.modules['uvicorn'] = None; sys.argv = ['psyco', 'studio', 'x']\n"
    code += "from psyco._src.cli import main\nmain()"
    environment = {"PYTHONPATH": str(SOURCE), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert said.returncode == 2 and 'pip install "psyco[studio]"' in said.stderr
