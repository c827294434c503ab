"""The server of a page that follows something in progress: a run, or a field test.

It serves people at this machine, and those who were given its address. Web pages of other origins can't read it: the
Host header is checked, and beyond loopback the address contains a secret. Clients are limited to one short request per
connection, few connections and two addresses; all of them are read-only.
"""

from __future__ import annotations

import errno
import json
import logging
import re
import secrets
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import parse_qs

from psyco._src.core.errors import PsycoError, RunError
from psyco._src.reports.page import Sections, content_policy, render_page

if TYPE_CHECKING:
    from starlette.responses import Response

logger = logging.getLogger(__name__)

LOOPBACK_NAMES = ("127.0.0.1", "::1", "localhost")  # permitted in a Host header
MAX_CONNECTIONS = 16  # at a time; an open page needs one, for a moment
MAX_HEAD_BYTES = 8192
REQUEST_SECONDS = 5.0  # time limit for receiving a request
CONNECTION_SECONDS = 30.0  # time limit of a connection, the response included


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


class PageServer:
    """Serves the page at `/` and its updates at `/data.json`, read-only."""

    def __init__(self, page: LivePage, host: str = "127.0.0.1", port: int = 0) -> None:
        try:
            import uvicorn

            from psyco._src.reports.short_connections import ShortConnection
        except ImportError as error:
            raise RunError(f'a live page needs {error.name}: pip install "psyco[studio]"') from None
        self.page = page
        self.socket = listen(host, port)
        address, self.port = self.socket.getsockname()[:2]
        self.host = str(address)
        self.loopback = ip_address(self.host).is_loopback
        # Beyond loopback the secret path is what keeps other people out.
        self.root = "/" if self.loopback else f"/{secrets.token_urlsafe(16)}/"
        self.server = uvicorn.Server(
            uvicorn.Config(
                self,
                http=ShortConnection,
                ws="none",
                lifespan="off",
                log_level="critical",
                access_log=False,
                server_header=False,
                date_header=False,
                proxy_headers=False,
                limit_concurrency=MAX_CONNECTIONS + 1,
                h11_max_incomplete_event_size=MAX_HEAD_BYTES,
                timeout_graceful_shutdown=1,
            )
        )

    @property
    def url(self) -> str:
        """The address of the page."""
        return f"http://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}{self.root}"

    def serve(self) -> None:
        """Serve until Ctrl-C."""
        with suppress(KeyboardInterrupt):
            self.server.run(sockets=[self.socket])

    @contextmanager
    def in_background(self) -> Iterator[PageServer]:
        """Serve in a thread during the block."""
        thread = threading.Thread(target=self.server.run, args=([self.socket],), daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self.server.should_exit = True
            thread.join()

    def close(self) -> None:
        """Close the port of a server that does not serve."""
        self.socket.close()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer a request, as an ASGI application; on loopback, only where the Host header names this machine."""
        from starlette.concurrency import run_in_threadpool

        if scope["type"] != "http":
            return
        hosts = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
        path = scope["path"]
        answers = {"": self._page, "data.json": self._update}
        size = len(path) + len(scope["query_string"]) + sum(len(name) + len(value) for name, value in scope["headers"])
        if size > MAX_HEAD_BYTES:
            answer = _text(431, "this page takes short requests")
        elif scope["method"] not in ("GET", "HEAD"):
            answer = _text(405, "this page takes short GET and HEAD requests")
        elif len(hosts) != 1 or (self.loopback and host_name(hosts[0]) not in LOOPBACK_NAMES):
            answer = _text(403, "this page is served to its own machine only")
        elif not secrets.compare_digest(path[: len(self.root)].encode(errors="replace"), self.root.encode()):
            answer = _text(404, "there is nothing at this address")
        elif (name := path[len(self.root) :]) not in answers:
            answer = _text(404, "there is / and /data.json")
        else:
            answer = await run_in_threadpool(_attempt, answers[name], scope["query_string"].decode("latin-1"))
        answer.headers.update(
            {
                "Cache-Control": "no-store",
                "Content-Security-Policy": f"{content_policy()}; frame-ancestors 'none'",
                "Cross-Origin-Resource-Policy": "same-origin",
                "Referrer-Policy": "no-referrer",
                "X-Content-Type-Options": "nosniff",
                "Connection": "close",
            }
        )
        with suppress(OSError):  # the client has gone
            await answer(scope, receive, send)

    def _page(self, _: str) -> Response:
        from starlette.responses import HTMLResponse

        return HTMLResponse(live_html(self.page))

    def _update(self, query: str) -> Response:
        from starlette.responses import Response

        if parse_qs(query).get("version", [""])[0] == self.page.version():
            return Response(status_code=204)
        return Response(json.dumps(live_update(self.page), allow_nan=False), media_type="application/json")


def _attempt(answer: Callable[[str], Response], query: str) -> Response:
    """Return the error as an answer where the page can't be made, for example after its run was removed."""
    try:
        return answer(query)
    except PsycoError as error:
        return _text(503, str(error))
    except Exception:
        logger.exception("the page can't be made")
        return _text(500, "the page can't be made; the log of the server says why")


def _text(status: int, text: str) -> Response:
    from starlette.responses import PlainTextResponse

    return PlainTextResponse(f"{text}\n".encode(errors="replace"), status)


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket; raise RunError with a remedy for an unusable address."""
    try:
        # Prefer IPv4 where a name has both.
        family = min(found[0] for found in socket.getaddrinfo(host, port))
        made = socket.socket(family, socket.SOCK_STREAM)
        try:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            made.bind((host, port))
            made.listen(128)  # a page that comes at once waits instead of failing
        except BaseException:
            made.close()
            raise
    except (OSError, UnicodeError, ValueError) as error:
        raise RunError(f"cannot serve on {host!r}, port {port}: {_remedy(error)}") from None
    return made


def _remedy(error: Exception) -> str:
    """Return a remedy for an unusable address; a wrong host and a wrong port have different ones."""
    if isinstance(error, OSError) and error.errno in (errno.EADDRINUSE, errno.EACCES):
        return f"{error.strerror}; choose another --port"
    reason = error.strerror if isinstance(error, OSError) else error
    return f"{reason}; --host is a name or an address of this machine, such as 127.0.0.1, or 0.0.0.0 for all"


def host_name(host: str) -> str:
    """Return the name in a Host header, without the port: `localhost:8000`, `[::1]:8000`."""
    found = re.fullmatch(r"(?:\[([^\]]*)\]|([^:]*))(?::\d*)?", host.strip())
    return (found[1] or found[2]) if found else ""
