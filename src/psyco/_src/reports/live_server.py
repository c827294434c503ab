"""A page about something that goes on: a small server that tells the page when there is news.

It is for the people at this machine, and for those to whom they give its address. Other sites that they have open can't
read along (the Host header is checked; beyond loopback the address has a secret part), and whoever connects gets
little: one short request per connection, few connections, two addresses, nothing but reading.
"""

from __future__ import annotations

import errno
import io
import json
import logging
import re
import secrets
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import parse_qs, urlsplit

from psyco._src.core.errors import PsycoError, RunError
from psyco._src.reports.run_page import content_policy, run_data, run_page, sections
from psyco._src.runs.lock import is_locked
from psyco._src.runs.store import ABOUT, CERTIFICATE, EPISODES, METRICS, load_episodes, read_run

logger = logging.getLogger(__name__)

NAMES = ("127.0.0.1", "::1", "localhost")  # of this machine, in a Host header
CONNECTIONS = 16  # at a time; a page needs one, for a moment
REQUEST_BYTES = 8192
REQUEST_SECONDS = 5.0  # for a request to arrive, and for its answer to be taken
PLAIN = "text/plain; charset=utf-8"


class LivePage(Protocol):
    """What a server shows."""

    def version(self) -> str:
        """Changes when there is news."""

    def news(self) -> dict[str, Any]:
        """Everything that the page shows, as it is now, with its version."""

    def page(self) -> str:
        """The page itself."""


@dataclass(frozen=True)
class LiveRun:
    """A run, by what its files say."""

    folder: Path

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


class PageServer(ThreadingHTTPServer):
    """Serves `/`, the page, and `/data.json`, its news; nothing else, and it changes nothing."""

    daemon_threads = True

    def __init__(self, shown: LivePage, host: str = "127.0.0.1", port: int = 0) -> None:
        self.shown = shown
        self.free = threading.BoundedSemaphore(CONNECTIONS)
        try:
            # IPv4 first, where a name has both.
            self.address_family = min(found[0] for found in socket.getaddrinfo(host, port))
            super().__init__((host, port), _Handler)
        except (OSError, UnicodeError) as error:
            raise RunError(f"cannot serve on {host!r}, port {port}: {_remedy(error)}") from None
        self.loopback = ip_address(str(self.server_address[0])).is_loopback
        # Who can't see this machine's screen must be told the address.
        self.root = "/" if self.loopback else f"/{secrets.token_urlsafe(16)}/"

    @property
    def url(self) -> str:
        """Where to look."""
        host, port = str(self.server_address[0]), self.server_address[1]
        return f"http://{f'[{host}]' if ':' in host else host}:{port}{self.root}"

    def process_request(self, request: Any, client_address: Any) -> None:
        """In a thread of its own, if there are not too many; else the connection is closed."""
        if self.free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """As it is, and room for another one afterwards."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no news; anything else was answered by `_Handler.answer`."""
        logger.debug("a connection broke off", exc_info=True)


def _remedy(error: OSError | UnicodeError) -> str:
    """What to do about an address that can't be had; a wrong host is told from a wrong port."""
    if isinstance(error, OSError) and error.errno in (errno.EADDRINUSE, errno.EACCES):
        return f"{error.strerror}; choose another --port"
    reason = error.strerror if isinstance(error, OSError) else error
    return f"{reason}; --host is a name or an address of this machine, such as 127.0.0.1, or 0.0.0.0 for all"


class _Handler(BaseHTTPRequestHandler):
    """One request, which is read whole before it is looked at."""

    server: PageServer
    server_version, sys_version = "PSyCo", ""
    default_request_version = "HTTP/1.0"  # headers are sent to whoever asks as in 1991, too

    def setup(self) -> None:
        super().setup()
        self.head = self._head()
        self.rfile = io.BytesIO(self.head)  # a body is never read

    def _head(self) -> bytes:
        """The request up to the empty line, however slowly its bytes come in: TimeoutError if that takes too long."""
        head, until = b"", time.monotonic() + REQUEST_SECONDS
        while b"\r\n\r\n" not in head and len(head) <= REQUEST_BYTES:
            self.connection.settimeout(max(0.01, until - time.monotonic()))
            if not (piece := self.connection.recv(REQUEST_BYTES)):
                return b""
            head += piece
        self.connection.settimeout(REQUEST_SECONDS)
        return head

    def handle_one_request(self) -> None:
        """Too much is refused before it is parsed."""
        if len(self.head) > REQUEST_BYTES:
            self.request_version, self.command, self.requestline = "HTTP/1.0", "GET", ""
            self.send_error(431)
        else:
            super().handle_one_request()

    def do_GET(self) -> None:
        """Two addresses; on loopback only for pages from here, so that no other site reads along."""
        answers: dict[str, Callable[[], None]] = {"": self._page, "data.json": self._news}
        hosts = self.headers.get_all("Host", [])
        path = urlsplit(self.path).path if self.path.startswith("/") else ""
        name = path.removeprefix(self.server.root)
        if len(hosts) != 1 or (self.server.loopback and _name(hosts[0]) not in NAMES):
            self._answer(403, PLAIN, b"this page is for those at its own machine\n")
        elif not secrets.compare_digest(path[: len(self.server.root)].encode(), self.server.root.encode()):
            self._answer(404, PLAIN, b"there is nothing here\n")
        elif name not in answers:
            self._answer(404, PLAIN, b"there is / and /data.json\n")
        else:
            self._try(answers[name])

    do_HEAD = do_GET  # `_answer` leaves the body out

    def _try(self, answer: Callable[[], None]) -> None:
        """What can't be shown (somebody has removed the run, say) is an answer, not a traceback."""
        try:
            answer()
        except PsycoError as error:
            self._answer(503, PLAIN, f"{error}\n".encode(errors="replace"))
        except OSError:
            raise
        except Exception:
            logger.exception("the page can't be made")
            self._answer(500, PLAIN, b"the page can't be made; the log of the server says why\n")

    def _page(self) -> None:
        self._answer(200, "text/html; charset=utf-8", self.server.shown.page().encode())

    def _news(self) -> None:
        known = parse_qs(urlsplit(self.path).query).get("version", [""])[0]
        if known == self.server.shown.version():
            self._answer(204, "application/json", b"")
        else:
            self._answer(
                200, "application/json", json.dumps(self.server.shown.news(), allow_nan=False).encode()
            )

    def _answer(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("Content-Security-Policy", f"{content_policy()}; frame-ancestors 'none'")
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """What `http.server` refuses by itself, in few words: other methods, requests that are none."""
        code = 405 if code == 501 else code  # it does not know that there are two methods only
        self._answer(code, PLAIN, b"this page takes short GET and HEAD requests\n")

    def log_message(self, format: str, *arguments: Any) -> None:
        """Requests are news for nobody but a debugger."""
        logger.debug(format, *arguments)


def _name(host: str) -> str:
    """The name in a Host header: `localhost:8000` and `[::1]:8000` have a port behind it."""
    found = re.fullmatch(r"(?:\[([^\]]*)\]|([^:]*))(?::\d*)?", host.strip())
    return (found[1] or found[2]) if found else ""
