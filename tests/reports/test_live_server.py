"""The server of live pages answers its own machine only, and limits every client."""

import re
import shutil
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from psyco._src.core.errors import RunError
from psyco._src.reports import live_server
from psyco._src.reports.live_server import MAX_CONNECTIONS, PageServer
from psyco._src.reports.run_page import LiveRun
from tests.runs.small import begun

HOST = "Host: localhost\r\n"

pytestmark = pytest.mark.extra("starlette", "uvicorn")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return begun(tmp_path / "run")


@contextmanager
def serving(folder: Path, host: str = "127.0.0.1") -> Iterator[PageServer]:
    with PageServer(LiveRun(folder), host).in_background() as server:
        yield server


@pytest.fixture
def server(run: Path) -> Iterator[PageServer]:
    with serving(run) as server:
        yield server


def connect(server: PageServer) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=30)


def received(connection: socket.socket) -> bytes:
    """Return what comes until the server closes or resets the connection."""
    found = b""
    with suppress(ConnectionError):
        while piece := connection.recv(2**16):
            found += piece
    return found


def ask(server: PageServer, request: str) -> tuple[int, str, str]:
    """Return status, headers and body of the response; status 0 where there is none."""
    with connect(server) as connection:
        with suppress(ConnectionError):
            connection.sendall(request.encode())
        answer = received(connection)
    head, _, body = answer.decode().partition("\r\n\r\n")
    return int(head.split()[1]) if head else 0, head, body


def get(server: PageServer, path: str = "/", head: str = HOST) -> int:
    return ask(server, f"GET {path} HTTP/1.1\r\n{head}\r\n")[0]


def test_head_is_get_without_a_body_and_nothing_else_is_permitted(server: PageServer) -> None:
    status, shown, body = ask(server, f"GET / HTTP/1.1\r\n{HOST}\r\n")
    assert (status, "</html>" in body) == (200, True)
    length = re.search("content-length: .*", shown)
    assert length is not None
    assert ask(server, f"HEAD / HTTP/1.1\r\n{HOST}\r\n")[2] == ""
    assert length[0] in ask(server, f"HEAD / HTTP/1.1\r\n{HOST}\r\n")[1]
    for method in ("POST", "PUT", "DELETE", "OPTIONS", "TRACE", "get", "X"):
        assert ask(server, f"{method} / HTTP/1.1\r\n{HOST}\r\n")[0] == 405


@pytest.mark.parametrize(
    ("head", "status"),
    [
        ("Host: localhost:9000\r\n", 200),  # a port that is forwarded
        ("Host: 127.0.0.1\r\n", 200),
        ("Host: [::1]:80\r\n", 200),
        ("Host: evil.example\r\n", 403),
        ("Host: localhost.evil.example\r\n", 403),
        ("Host: 127.0.0.1.evil.example:80\r\n", 403),
        ("Host: [::1].evil.example\r\n", 403),
        ("Host: localhost\r\nHost: evil.example\r\n", 400),
        ("", 400),
    ],
)
def test_a_page_of_another_origin_cannot_read_it(server: PageServer, head: str, status: int) -> None:
    """DNS rebinding: a site may resolve its own name to 127.0.0.1; the browser then sends that name."""
    assert get(server, "/", head) == status


@pytest.mark.parametrize(
    "path",
    [
        "/config.toml",
        "/../run/config.toml",
        "/%2e%2e/x",
        "//etc/passwd",
        "http://localhost/",
        "/[",
        "/data.json/x",
    ],
)
def test_there_are_two_addresses_and_no_way_to_a_file(server: PageServer, path: str) -> None:
    assert get(server, path) == 404


def test_the_content_policy_permits_no_outside_origin(server: PageServer) -> None:
    for path in ("/", "/data.json", "/nowhere"):
        _, head, _ = ask(server, f"GET {path} HTTP/1.1\r\n{HOST}\r\n")
        found = re.search("(?i)Content-Security-Policy: (.*)", head)
        assert found is not None
        sources = {word for rule in found[1].strip().split(";") for word in rule.split()[1:]}
        assert sources <= {"'none'", "'self'", "'unsafe-inline'", "data:"} | {s for s in sources if "'sha256-" in s}
        assert "default-src 'none'" in found[1]
        assert "script-src 'sha256-" in found[1]


def test_a_request_that_is_too_long_is_refused(server: PageServer) -> None:
    assert get(server, "/" + "x" * 9000) == 431
    # The server may close the connection before it has read all of it; then there is no answer.
    assert get(server, "/", HOST + "X: y\r\n" * 20_000) in (400, 431, 0)


def test_a_request_that_comes_in_too_slowly_is_dropped(server: PageServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_server, "REQUEST_SECONDS", 0.1)
    with connect(server) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\n")
        assert received(connection) == b""


def test_idle_clients_keep_nobody_out_for_long(server: PageServer, monkeypatch: pytest.MonkeyPatch) -> None:
    idle = [connect(server) for _ in range(MAX_CONNECTIONS + 1)]
    assert get(server) == 503, "too many at once"
    for connection in idle:
        connection.close()
    monkeypatch.setattr(live_server, "REQUEST_SECONDS", 0.1)
    idle = [connect(server) for _ in range(MAX_CONNECTIONS + 1)]
    for connection in idle:
        assert received(connection) == b""
        connection.close()
    assert get(server) == 200


def test_a_connection_takes_one_request(server: PageServer) -> None:
    twice = f"GET /data.json HTTP/1.1\r\n{HOST}\r\n" * 2
    status, _, body = ask(server, twice)
    assert status == 200 and "HTTP/1.1" not in body


def test_a_client_that_hangs_up_leaves_no_traceback(
    server: PageServer, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, gone = threading.Event(), threading.Event()
    monkeypatch.setattr(live_server, "live_html", lambda _: (asked.set(), gone.wait(30), "x" * 10_000_000)[-1])
    with connect(server) as connection:
        connection.sendall(f"GET / HTTP/1.1\r\n{HOST}\r\n".encode())
        assert asked.wait(30)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # reset, not closed
    gone.set()
    assert get(server, "/data.json") == 200
    assert capfd.readouterr().err == ""


def test_a_removed_run_is_answered_with_an_error(server: PageServer, run: Path) -> None:
    shutil.rmtree(run)
    status, _, body = ask(server, f"GET / HTTP/1.1\r\n{HOST}\r\n")
    assert (status, "is not a run folder" in body) == (503, True)


def test_beyond_loopback_the_address_has_a_secret_part(run: Path) -> None:
    with serving(run, "0.0.0.0") as server, serving(run, "0.0.0.0") as other:
        secret = server.url.split("/")[3]
        assert len(secret) >= 20
        assert secret != other.url.split("/")[3]
        assert get(server, f"/{secret}/", "Host: any.name\r\n") == 200
        assert get(server, f"/{secret}/data.json") == 200
        for path in ("/", "/data.json", f"/{secret}", f"/{secret[:-1]}/", f"/{secret}x/", f"//{secret}"):
            assert get(server, path) == 404


@pytest.mark.parametrize("host", ["no.such.name.invalid", "300.1.2.3", "x" * 300, "192.0.2.1", "\0"])
def test_a_wrong_host_has_its_own_error(run: Path, host: str) -> None:
    with pytest.raises(RunError, match="--host is a name or an address of this machine"):
        PageServer(LiveRun(run), host)


def test_a_port_in_use_has_its_own_error(run: Path, server: PageServer) -> None:
    with pytest.raises(RunError, match="choose another --port"):
        PageServer(LiveRun(run), port=server.port)
