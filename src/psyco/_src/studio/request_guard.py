"""The gate of the studio: every request passes it before anything else sees it.

A page of another origin cannot read or change anything: the Host header must name this machine (no DNS rebinding), the
address contains a secret, and a change is a POST from our own origin that repeats the secret in a header.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any, TypeAlias

from psyco._src.core.errors import RunError
from psyco._src.reports.live_server import LOOPBACK_NAMES, host_name

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
Application: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]

TOKEN_HEADER = b"x-studio-token"
MAX_BODY_BYTES = 64 * 1024
BODY_SECONDS = 5.0  # time limit for receiving a body
MAX_STREAMS = 16  # event streams at a time; an open tab has one
# A bucket of requests: its size, and how many are added per second.
READ_LIMIT, CHANGE_LIMIT = (400, 100.0), (60, 20.0)
HEADERS = {
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "frame-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


class Bucket:
    """A limit on the rate of requests."""

    def __init__(self, size: int, per_second: float) -> None:
        self.size, self.per_second = size, per_second
        self.left, self.at = float(size), time.monotonic()

    def take(self) -> bool:
        """Take one; False if none is left."""
        now = time.monotonic()
        self.left = min(self.size, self.left + (now - self.at) * self.per_second)
        self.at = now
        if self.left < 1.0:
            return False
        self.left -= 1.0
        return True


class RequestGuard:
    """An ASGI application that checks a request and then passes it on, without the secret in its path."""

    def __init__(self, inner: Application, token: str | None = None) -> None:
        self.inner = inner
        self.token = token or secrets.token_urlsafe(24)
        self.reads, self.changes = Bucket(*READ_LIMIT), Bucket(*CHANGE_LIMIT)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] == "lifespan":
            await self.inner(scope, receive, send)
        elif scope["type"] == "http":
            refusal = self.refuse(scope)
            if refusal is not None:
                await _answer(send, *refusal)
                return
            if scope["path"] == f"/{self.token}" and scope["method"] == "GET":  # copied without its last character
                await _answer(send, 308, "the address ends with /", {"Location": f"/{self.token}/"})
                return
            path = scope["path"].removeprefix(f"/{self.token}")
            await self.inner({**scope, "path": path, "raw_path": path.encode(errors="replace")}, receive, send)

    def refuse(self, scope: Scope) -> tuple[int, str] | None:
        """Return status and reason if a request is refused."""
        headers = scope["headers"]
        hosts = [value.decode("latin-1") for name, value in headers if name == b"host"]
        change = scope["method"] == "POST"
        if len(hosts) != 1 or host_name(hosts[0]) not in LOOPBACK_NAMES:
            return 403, "the studio is served to its own machine only"
        secret = f"{scope['path']}/".split("/")[1]
        if not secrets.compare_digest(secret.encode(errors="replace"), self.token.encode()):
            return 404, "there is nothing at this address; psyco studio prints the right one"
        if scope["method"] not in ("GET", "HEAD", "POST"):
            return 405, "the studio takes GET, HEAD and POST"
        if change and (reason := self.refuse_change(headers, f"http://{hosts[0].strip()}")):
            return 403, reason
        if not (self.changes if change else self.reads).take():
            return 429, "too many requests; wait a moment"
        return None

    def refuse_change(self, headers: list[tuple[bytes, bytes]], origin: str) -> str | None:
        """Return why a POST is refused: another origin, no secret, or no JSON."""
        given = dict(headers)
        if given.get(b"origin", b"").decode("latin-1") != origin:
            return "a change must come from the studio's own page"
        if given.get(b"sec-fetch-site", b"same-origin") != b"same-origin":
            return "a change must come from the studio's own page"
        if not secrets.compare_digest(given.get(TOKEN_HEADER, b""), self.token.encode()):
            return "a change must repeat the secret of the address"
        if given.get(b"content-type", b"").split(b";")[0].strip() != b"application/json":
            return "a change is JSON"
        return None


async def _answer(send: Send, status: int, text: str, more: Mapping[str, str] | None = None) -> None:
    headers = {**HEADERS, "Content-Type": "text/plain; charset=utf-8", "Content-Security-Policy": "default-src 'none'"}
    headers |= more or {}
    encoded = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": encoded})
    await send({"type": "http.response.body", "body": f"{text}\n".encode()})


async def read_json(receive: Receive) -> dict[str, Any]:
    """Return the JSON object in the body of a request; raise RunError if it is too long, too slow or no object."""
    try:
        body = await asyncio.wait_for(_body(receive), BODY_SECONDS)
        found = json.loads(body)
    except TimeoutError:
        raise RunError("the request took too long to arrive") from None
    except (ValueError, RecursionError):
        raise RunError("the request is not JSON") from None
    if not isinstance(found, dict):
        raise RunError("the request is not a JSON object")
    return found


async def _body(receive: Receive) -> bytes:
    body = b""
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ValueError("no one waits for the answer")
        body += message.get("body", b"")
        if len(body) > MAX_BODY_BYTES:
            raise RunError(f"the request has more than {MAX_BODY_BYTES:,} bytes")
        if not message.get("more_body", False):
            return body
