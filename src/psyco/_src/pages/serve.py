"""The page of a run while the run goes on: a small server that tells the page when there is news."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from psyco._src.errors import RunError
from psyco._src.pages.page import run_data, run_page, sections
from psyco._src.run.folder import ABOUT, CERTIFICATE, EPISODES, METRICS, load_episodes, read_run
from psyco._src.run.lock import is_locked

logger = logging.getLogger(__name__)
LOOPBACK = ("127.0.0.1", "::1", "localhost")


class RunServer(ThreadingHTTPServer):
    """Serves `/`, the page, and `/data.json`, its news; nothing else, and it changes nothing."""

    daemon_threads = True

    def __init__(self, folder: Path, host: str = "127.0.0.1", port: int = 0) -> None:
        self.folder = folder
        self.loopback = host in LOOPBACK
        try:
            super().__init__((host, port), _Handler)
        except OSError as error:
            raise RunError(
                f"cannot serve on {host}:{port}: {error.strerror}; choose another --port"
            ) from None

    @property
    def url(self) -> str:
        """Where to look."""
        return f"http://{self.server_address[0]!s}:{self.server_address[1]}/"

    def version(self) -> str:
        """Changes when the run's files do."""
        return (
            " ".join(map(self._stamp, (METRICS, CERTIFICATE, EPISODES, ABOUT))) + f" {is_locked(self.folder)}"
        )

    def news(self) -> dict[str, Any]:
        """Everything that the page shows, as it is now."""
        version = self.version()
        record = read_run(self.folder)
        return {
            "version": version,
            "sections": sections(record),
            "data": run_data(record, load_episodes(record)),
        }

    def page(self) -> str:
        """The page itself."""
        return run_page(read_run(self.folder), live=True)

    def _stamp(self, name: str) -> str:
        try:
            found = (self.folder / name).stat()
        except OSError:
            return "-"
        return f"{found.st_mtime_ns}.{found.st_size}"


class _Handler(BaseHTTPRequestHandler):
    server: RunServer

    def do_GET(self) -> None:
        """Two addresses; on loopback only for pages from here, so that no other site reads along."""
        host = (self.headers.get("Host") or "").rsplit(":", 1)[0].strip("[]")
        address = urlsplit(self.path)
        answers: dict[str, Callable[[], None]] = {"/": self._page, "/data.json": self._news}
        if self.server.loopback and host not in LOOPBACK:
            self._answer(403, "text/plain", b"not for other hosts\n")
        elif address.path not in answers:
            self._answer(404, "text/plain", b"there is / and /data.json\n")
        else:
            answers[address.path]()

    def _page(self) -> None:
        self._answer(200, "text/html; charset=utf-8", self.server.page().encode())

    def _news(self) -> None:
        known = parse_qs(urlsplit(self.path).query).get("version", [""])[0]
        if known == self.server.version():
            self._answer(204, "application/json", b"")
        else:
            self._answer(200, "application/json", json.dumps(self.server.news(), allow_nan=False).encode())

    def _answer(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Requests are news for nobody but a debugger."""
        logger.debug(format, *arguments)
