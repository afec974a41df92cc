"""The hosts on which tests run a cluster: what they have in common, and what is left of them."""

import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from support.hosts import CAN_MAKE_HOSTS, Host, Network
from support.pipeline_case import wait_until, with_text

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(not CAN_MAKE_HOSTS, reason="hosts take the right to make namespaces, mounts and networks"),
]
ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
CODE = Path(__file__).parents[2]
CONNECT = "import socket, sys; print(socket.create_connection((sys.argv[1], int(sys.argv[2])), 5).recv(100))"


@pytest.fixture
def server() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening


@pytest.fixture
def hosts(tmp_path: Path, server: socket.socket) -> Iterator[tuple[Host, Host]]:
    with Network(tmp_path / "hosts", ["one", "two"], [server.getsockname()[1]]) as network:
        one, two = Host(network, "one"), Host(network, "two")
        yield one, two
        one.kill()
        two.kill()


def test_a_host_has_a_disk_of_its_own_and_the_release(hosts: tuple[Host, Host], tmp_path: Path) -> None:
    (tmp_path / "ours").touch()
    look = f"ls /tmp; ls {tmp_path} 2>&1 | tail -n 1; touch {CODE}/ours || true; hostname; echo more >/tmp/mine; ps -e | wc -l"
    hosts[0].start(["sh", "-c", f"set -e; {look}"], ENVIRONMENT, {"given": "text"})
    assert hosts[0].wait(60) == 0, hosts[0].said
    listed, missing, denied, name, processes = hosts[0].said.splitlines()
    assert (listed, name) == ("given", "one")
    assert "No such file" in missing
    assert "Read-only file system" in denied
    # The header, the first process, the forwarder, this shell, ps and wc.
    assert int(processes) == 6
    assert (hosts[0].disk / "mine").read_text() == "more\n"
    assert not (hosts[1].disk / "mine").exists()


def test_a_host_reaches_its_neighbors_and_given_servers(hosts: tuple[Host, Host], server: socket.socket) -> None:
    listen = "import socket; s = socket.create_server(('', 7000)); s.accept()[0].sendall(b'neighbor')"
    hosts[1].start([sys.executable, "-c", listen], ENVIRONMENT, {})
    script = (
        f"{sys.executable} -c '{CONNECT}' 127.0.0.1 {server.getsockname()[1]}; until {sys.executable} -c '{CONNECT}' two 7000; do :; done"
    )
    hosts[0].start(["sh", "-c", script], ENVIRONMENT, {})
    server.settimeout(60)
    server.accept()[0].sendall(b"server")
    assert hosts[0].wait(60) == 0, hosts[0].said
    assert [line for line in hosts[0].said.splitlines() if line.startswith("b'")] == ["b'server'", "b'neighbor'"]


def test_a_killed_host_leaves_no_process(hosts: tuple[Host, Host]) -> None:
    hosts[0].start(["sh", "-c", "sleep 1000 & sleep 1000"], ENVIRONMENT, {})
    running = list[psutil.Process]()

    def both_sleep() -> bool:
        # What sets a host up ends while it is looked at.
        running[:] = [one for one in with_text(hosts[0].processes(), "sleep 1000") if one.name() == "sleep"]
        return len(running) == 2

    wait_until(both_sleep, "two processes")
    hosts[0].kill()
    assert not any(psutil.pid_exists(found.pid) and found.is_running() for found in running)
    assert hosts[0].processes() == []
