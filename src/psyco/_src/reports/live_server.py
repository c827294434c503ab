"""A small HTTP server for a page that follows something in progress: a run, or a field test.

It serves people at this machine, and those who were given its address. Web pages of other origins can't read it: the
Host header is checked, and beyond loopback the address contains a secret. Clients are limited to one short request per
connection, few connections and two addresses; all of them are read-only.
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
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from typing import Any, Protocol
from urllib.parse import parse_qs, urlsplit

from psyco._src.core.errors import PsycoError, RunError
from psyco._src.reports.page import Sections, content_policy, render_page

logger = logging.getLogger(__name__)

LOOPBACK_NAMES = ("127.0.0.1", "::1", "localhost")  # permitted in a Host header
MAX_CONNECTIONS = 16  # at a time; an open page needs one, for a moment
MAX_REQUEST_BYTES = 8192
REQUEST_SECONDS = 5.0  # time limit for receiving a request, and for sending the response
PLAIN_TEXT = "text/plain; charset=utf-8"


class LivePage(Protocol):
    """A page whose content changes while it is open."""

    @property
    def title(self) -> str:
        """The title of the page."""

    def version(self) -> str:
        """Return a text that changes whenever the content does."""

    def content(self) -> tuple[Sections, Mapping[str, Any]]:
        """Return the sections of the page and the data of its charts."""


def live_html(page: LivePage) -> str:
    """Return the whole page, which will ask its server for updates."""
    return render_page(page.title, *page.content(), live=True)


def live_update(page: LivePage) -> dict[str, Any]:
    """Return the current content of a page that is open."""
    # The version comes first: a change in between is then reported once more instead of never.
    version = page.version()
    sections, data = page.content()
    return {"version": version, "sections": sections, "data": data}


class PageServer(ThreadingHTTPServer):
    """Serves the page at `/` and its updates at `/data.json`, read-only."""

    daemon_threads = True

    def __init__(self, page: LivePage, host: str = "127.0.0.1", port: int = 0) -> None:
        self.page = page
        self.free_connections = threading.BoundedSemaphore(MAX_CONNECTIONS)
        try:
            # Prefer IPv4 where a name has both.
            self.address_family = min(found[0] for found in socket.getaddrinfo(host, port))
            super().__init__((host, port), _Handler)
        except (OSError, UnicodeError) as error:
            raise RunError(f"cannot serve on {host!r}, port {port}: {_remedy(error)}") from None
        self.loopback = ip_address(str(self.server_address[0])).is_loopback
        # Beyond loopback the secret path is what keeps other people out.
        self.root = "/" if self.loopback else f"/{secrets.token_urlsafe(16)}/"

    @property
    def url(self) -> str:
        """The address of the page."""
        host, port = str(self.server_address[0]), self.server_address[1]
        return f"http://{f'[{host}]' if ':' in host else host}:{port}{self.root}"

    def process_request(self, request: Any, client_address: Any) -> None:
        """Handle a connection in its own thread; close it where there are too many."""
        if self.free_connections.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Handle a connection, then free its place."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.free_connections.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log a broken connection; `_Handler._try` has answered every other error."""
        logger.debug("connection broken", exc_info=True)


def _remedy(error: OSError | UnicodeError) -> str:
    """Return a remedy for an unusable address; a wrong host and a wrong port have different ones."""
    if isinstance(error, OSError) and error.errno in (errno.EADDRINUSE, errno.EACCES):
        return f"{error.strerror}; choose another --port"
    reason = error.strerror if isinstance(error, OSError) else error
    return f"{reason}; --host is a name or an address of this machine, such as 127.0.0.1, or 0.0.0.0 for all"


class _Handler(BaseHTTPRequestHandler):
    """Answers one request, which is received as a whole before it is parsed."""

    server: PageServer
    server_version, sys_version = "PSyCo", ""
    default_request_version = "HTTP/1.0"  # send headers also to a request without a version (HTTP/0.9)

    def setup(self) -> None:
        super().setup()
        self.head = self._receive_head()
        self.rfile = io.BytesIO(self.head)  # a body is never read

    def _receive_head(self) -> bytes:
        """Return the request up to the empty line; raise TimeoutError where that takes too long in total."""
        head, deadline = b"", time.monotonic() + REQUEST_SECONDS
        while b"\r\n\r\n" not in head and len(head) <= MAX_REQUEST_BYTES:
            self.connection.settimeout(max(0.01, deadline - time.monotonic()))
            if not (piece := self.connection.recv(MAX_REQUEST_BYTES)):
                return b""
            head += piece
        self.connection.settimeout(REQUEST_SECONDS)
        return head

    def handle_one_request(self) -> None:
        """Refuse an oversized request before it is parsed."""
        if len(self.head) > MAX_REQUEST_BYTES:
            self.request_version, self.command, self.requestline = "HTTP/1.0", "GET", ""
            self.send_error(431)
        else:
            super().handle_one_request()

    def do_GET(self) -> None:
        """Answer the two addresses; on loopback, only where the Host header names this machine."""
        answers: dict[str, Callable[[], None]] = {"": self._send_page, "data.json": self._send_update}
        hosts = self.headers.get_all("Host", [])
        path = urlsplit(self.path).path if self.path.startswith("/") else ""
        name = path.removeprefix(self.server.root)
        if len(hosts) != 1 or (self.server.loopback and _host_name(hosts[0]) not in LOOPBACK_NAMES):
            self._answer(403, PLAIN_TEXT, b"this page is served to its own machine only\n")
        elif not secrets.compare_digest(path[: len(self.server.root)].encode(), self.server.root.encode()):
            self._answer(404, PLAIN_TEXT, b"there is nothing at this address\n")
        elif name not in answers:
            self._answer(404, PLAIN_TEXT, b"there is / and /data.json\n")
        else:
            self._try(answers[name])

    do_HEAD = do_GET  # `_answer` omits the body

    def _try(self, answer: Callable[[], None]) -> None:
        """Answer with the error where the page can't be made, for example after its run was removed."""
        try:
            answer()
        except PsycoError as error:
            self._answer(503, PLAIN_TEXT, f"{error}\n".encode(errors="replace"))
        except OSError:
            raise
        except Exception:
            logger.exception("the page can't be made")
            self._answer(500, PLAIN_TEXT, b"the page can't be made; the log of the server says why\n")

    def _send_page(self) -> None:
        self._answer(200, "text/html; charset=utf-8", live_html(self.server.page).encode())

    def _send_update(self) -> None:
        known = parse_qs(urlsplit(self.path).query).get("version", [""])[0]
        if known == self.server.page.version():
            self._answer(204, "application/json", b"")
        else:
            update = json.dumps(live_update(self.server.page), allow_nan=False)
            self._answer(200, "application/json", update.encode())

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
        """Answer a request that `http.server` refuses: another method, or malformed."""
        code = 405 if code == 501 else code  # `http.server` has no notion of a method that is not allowed
        self._answer(code, PLAIN_TEXT, b"this page takes short GET and HEAD requests\n")

    def log_message(self, format: str, *arguments: Any) -> None:
        """Log a request for debugging only."""
        logger.debug(format, *arguments)


def _host_name(host: str) -> str:
    """Return the name in a Host header, without the port: `localhost:8000`, `[::1]:8000`."""
    found = re.fullmatch(r"(?:\[([^\]]*)\]|([^:]*))(?::\d*)?", host.strip())
    return (found[1] or found[2]) if found else ""
