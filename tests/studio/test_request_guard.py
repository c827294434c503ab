"""The gate of the studio, without a server: what passes and what is refused."""

import asyncio

import pytest

from psyco._src.core.errors import RunError
from psyco._src.reports.live_server import host_name
from psyco._src.studio.request_guard import CHANGE_LIMIT, MAX_BODY_BYTES, RequestGuard, read_json

TOKEN = "secret"
OWN = {
    "host": "127.0.0.1:80",
    "origin": "http://127.0.0.1:80",
    "x-studio-token": TOKEN,
    "content-type": "application/json",
}


def ask(guard, method="GET", path=f"/{TOKEN}/state", **headers):
    """Return the status, and the path that the application has seen."""
    seen, sent = [], []

    async def inner(scope, receive, send):
        seen.append(scope["path"])
        await send({"type": "http.response.start", "status": 200, "headers": []})

    guard.inner = inner
    given = {**(OWN if method == "POST" else {"host": OWN["host"]}), **headers}
    pairs = [(name.replace("_", "-").encode(), value.encode()) for name, value in given.items() if value is not None]
    scope = {"type": "http", "method": method, "path": path, "headers": pairs}

    async def send(message):
        sent.append(message)

    asyncio.run(guard(scope, None, send))
    return sent[0]["status"], (seen[0] if seen else None)


@pytest.fixture
def guard():
    return RequestGuard(None, TOKEN)


@pytest.mark.parametrize("host", ["127.0.0.1:8000", "localhost:1", "[::1]:5", "localhost"])
def test_loopback_hosts_pass_without_the_secret_in_the_path(guard, host):
    assert ask(guard, host=host) == (200, "/state")


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example:80", "10.0.0.1:80", "", "[::2]:1", "localhost@evil"]
)
def test_a_foreign_host_is_refused(guard, host):
    assert ask(guard, host=host) == (403, None)


@pytest.mark.parametrize("path", ["/", "/state", "/other/state", f"/{TOKEN}x/state", f"//{TOKEN}/state", "*", ""])
def test_an_address_without_the_secret_leads_nowhere(guard, path):
    assert ask(guard, path=path) == (404, None)


def test_an_address_without_its_last_character_leads_to_the_page(guard):
    assert ask(guard, path=f"/{TOKEN}") == (308, None)
    assert ask(guard, path=f"/{TOKEN}", host="evil.example") == (403, None)


@pytest.mark.parametrize("method", ["PUT", "DELETE", "OPTIONS", "TRACE", "BREW"])
def test_other_methods_are_refused(guard, method):
    assert ask(guard, method) == (405, None)


def test_a_change_from_the_own_page_passes(guard):
    assert ask(guard, "POST") == (200, "/state")


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": None},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:81"},
        {"origin": "https://127.0.0.1:80"},
        {"x-studio-token": None},
        {"x-studio-token": "guess"},
        {"content-type": "text/plain"},
        {"content-type": "application/x-www-form-urlencoded"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ],
)
def test_a_change_from_elsewhere_is_refused(guard, headers):
    assert ask(guard, "POST", **headers) == (403, None)


def test_changes_have_a_rate(guard):
    size = CHANGE_LIMIT[0]
    answers = [ask(guard, "POST")[0] for _ in range(size + 30)]
    assert answers[: size // 2] == [200] * (size // 2)
    assert 429 in answers
    assert ask(guard)[0] == 200  # reading has its own


def test_host_names():
    assert [host_name(text) for text in ("a:1", "[::1]:2", "a:b", "a")] == ["a", "::1", "", "a"]


def body(*chunks):
    messages = [{"type": "http.request", "body": chunk, "more_body": True} for chunk in chunks]
    messages[-1]["more_body"] = False

    async def receive():
        return messages.pop(0)

    return receive


def test_a_body_is_a_small_json_object():
    assert asyncio.run(read_json(body(b'{"a"', b": 1}"))) == {"a": 1}
    for bad in (b"[1]", b"{", b"\xff", b"[" * 5000, b" " * (MAX_BODY_BYTES + 1)):
        with pytest.raises(RunError):
            asyncio.run(read_json(body(bad)))
