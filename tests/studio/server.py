"""A studio in a process of its own, for tests."""

import contextlib
import http.client
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

SOURCE = Path(__file__).parents[2] / "src"


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


class StudioProcess:
    """`psyco studio` on a folder; `stop` ends it, and the jobs that it has started."""

    def __init__(self, folder: Path, *options: str, cwd: Path | None = None) -> None:
        self.folder = folder
        self.errors = folder.parent / f"{folder.name}-studio.err"
        command = [sys.executable, "-P", "-m", "psyco", "studio", str(folder), "--no-open", *options]
        environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
        with open(self.errors, "ab") as errors:
            self.process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment, cwd=cwd
            )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line.startswith("studio: "), (line, self.errors.read_text())
        self.url = line.split()[1]
        parts = urlsplit(self.url)
        self.port, self.token = parts.port, parts.path.strip("/")
        self.origin = f"http://127.0.0.1:{self.port}"

    def request(self, method: str, path: str, body: bytes | None = None, headers: Any = None) -> Answer:
        """Send a request; `path` is relative to the secret address."""
        target = path if path.startswith(("/", "*")) else f"/{self.token}/{path}"
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=400)
        try:
            connection.request(method, target, body, headers or {})
            answer = connection.getresponse()
            return Answer(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())
        finally:
            connection.close()

    def get(self, path: str, headers: Any = None) -> Answer:
        return self.request("GET", path, None, headers)

    def post(self, path: str, content: Any, headers: Any = None) -> Answer:
        own = {"Origin": self.origin, "X-Studio-Token": self.token, "Content-Type": "application/json"}
        return self.request("POST", path, json.dumps(content).encode(), {**own, **(headers or {})})

    def wait(self, wanted: Any, seconds: float = 400.0) -> Any:
        """Return the state of the studio once `wanted(state)` holds."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            found = self.get("state").json()
            if wanted(found):
                return found
            time.sleep(0.2)
        raise AssertionError(found)

    def end(self) -> None:
        """End the server as Ctrl-C would; jobs go on."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            self.process.wait(30)

    def stop(self) -> None:
        """End the server and its jobs."""
        self.end()
        try:
            jobs = json.loads((self.folder / ".studio" / "jobs.json").read_text())
        except OSError:
            jobs = []
        for job in jobs:
            if job["state"] == "running":
                with contextlib.suppress(OSError):
                    os.kill(job["pid"], signal.SIGKILL)
