"""`make serve` shows the built book to this machine alone, and nothing else of it."""

import shlex
import socket
import subprocess
import time
from collections.abc import Iterator
from http.client import HTTPConnection

import pytest
from built import HTML, ROOT


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """Of the recipe's command, which make itself would start after looking at the environment."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        number: int = free.getsockname()[1]
    make = ["make", "-ns", "serve", f"PORT={number}"]
    said = subprocess.run(make, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    command = shlex.split(said.splitlines()[-1])
    quiet = subprocess.DEVNULL
    with subprocess.Popen(command, cwd=ROOT, stdout=quiet, stderr=quiet) as server:
        while not listens("127.0.0.1", number) and server.poll() is None:
            time.sleep(0.05)
        yield number
        server.terminate()


def listens(host: str, port: int) -> bool:
    with socket.socket() as ours:
        return ours.connect_ex((host, port)) == 0


def asked(port: int, path: str) -> tuple[int, bytes]:
    """Status and content, for a path that is sent as it is."""
    connection = HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("GET", path)
    answer = connection.getresponse()
    return answer.status, answer.read()


def test_no_other_address_of_the_machine_is_served(port):
    assert listens("127.0.0.1", port)
    others = {info[4][0] for info in socket.getaddrinfo(socket.gethostname(), None)}
    for other in {"127.0.0.2", *others} - {"127.0.0.1", "::1"}:
        family = socket.AF_INET6 if ":" in other else socket.AF_INET
        with socket.socket(family) as ours:
            ours.settimeout(2)
            assert ours.connect_ex((other, port)) != 0, other


UP = ["..", "%2e%2e", "%2E%2e", "..%2f..", "%5c..%5c..", "....//"]


def test_nothing_outside_the_pages_is_served(port):
    assert asked(port, "/intro.html") == (200, (HTML / "intro.html").read_bytes())
    for up in UP:
        for name in ("pyproject.toml", "Makefile", "_build/", "etc/passwd"):
            for path in (
                f"/{up}/{up}/{name}",
                f"/chapters/{up}/{up}/{up}/{name}",
                f"//{up}/{name}",
            ):
                assert asked(port, path)[0] == 404, path
    assert [path for path in HTML.rglob("*") if path.is_symlink()] == []
