"""The proxy of the network tests, before a plain echo server."""

import socket
import socketserver
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest
from support.proxy import HOST, Proxy

pytestmark = pytest.mark.integration


class _Echo(socketserver.BaseRequestHandler):
    """Answers what it reads, and at the end how many bytes that were."""

    def handle(self) -> None:
        count = 0
        # The proxy resets connections on purpose.
        with suppress(ConnectionResetError):
            while got := self.request.recv(65536):
                count += len(got)
                self.request.sendall(got)
            self.request.sendall(b" %d bytes" % count)


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    server = socketserver.ThreadingTCPServer((HOST, 0), _Echo)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=[0.01], daemon=True).start()
    with Proxy(server.server_address[1]) as made:
        yield made
    server.shutdown()
    server.server_close()


def connect(proxy: Proxy) -> socket.socket:
    return socket.create_connection((HOST, proxy.port), timeout=30)


def read(client: socket.socket, count: int) -> bytes:
    """So many bytes, or what comes before the end."""
    found = b""
    while len(found) < count and (got := client.recv(count - len(found))):
        found += got
    return found


def ask(client: socket.socket, request: bytes) -> bytes:
    client.sendall(request)
    return read(client, len(request))


def is_silent(client: socket.socket) -> bool:
    client.settimeout(0.1)
    try:
        client.recv(1)
    except TimeoutError:
        return True
    finally:
        client.settimeout(30)
    return False


def test_all_bytes_and_the_end_pass_in_both_directions(proxy: Proxy) -> None:
    content = bytes(range(256)) * 4096
    with connect(proxy) as client:
        threading.Thread(target=client.sendall, args=[content]).start()
        assert read(client, len(content)) == content
        client.shutdown(socket.SHUT_WR)
        assert read(client, 100) == b" 1048576 bytes"
    assert proxy.connections == 1


def test_refusing_resets_connections_and_lets_nobody_in(proxy: Proxy) -> None:
    with connect(proxy) as client:
        assert ask(client, b"a") == b"a"
        proxy.refuse()
        with pytest.raises(ConnectionResetError):
            client.recv(1)
    with pytest.raises(ConnectionRefusedError):
        connect(proxy)
    proxy.pass_on()
    with connect(proxy) as client:
        assert ask(client, b"b") == b"b"


def test_silence_holds_back_what_it_delivers_when_it_ends(proxy: Proxy) -> None:
    with connect(proxy) as before:
        assert ask(before, b"a") == b"a"
        proxy.be_silent()
        with connect(proxy) as during:
            before.sendall(b"b")
            during.sendall(b"c")
            assert is_silent(before) and is_silent(during)
            proxy.pass_on()
            assert (read(before, 1), read(during, 1)) == (b"b", b"c")


def test_a_held_request_holds_its_own_connection_only(proxy: Proxy) -> None:
    proxy.hold(b"INSERT")
    with connect(proxy) as one, connect(proxy) as other:
        assert ask(one, b"SELECT") == b"SELECT"
        one.sendall(b"INSERT")
        assert ask(other, b"SELECT") == b"SELECT"
        assert is_silent(one)
        proxy.pass_on()
        assert read(one, 6) == b"INSERT"


def test_forgotten_connections_stay_silent_and_new_ones_pass(proxy: Proxy) -> None:
    with connect(proxy) as before:
        assert ask(before, b"a") == b"a"
        proxy.forget()
        before.sendall(b"b")
        with connect(proxy) as after:
            assert ask(after, b"c") == b"c"
        proxy.pass_on()
        assert is_silent(before)


def test_a_cut_takes_the_answer_and_not_the_request(proxy: Proxy) -> None:
    proxy.cut(3, b"INSERT", in_a_row=2)
    reported = []
    for number in range(5):
        with connect(proxy) as client:
            assert ask(client, b"SELECT") == b"SELECT"
            try:
                reported.append(ask(client, b"INSERT %d" % number))
            except ConnectionResetError:
                reported.append(b"reset")
    assert reported == [b"reset", b"reset", b"INSERT 2", b"reset", b"INSERT 4"]
    assert proxy.cuts == 3


def test_a_half_closed_request_ends_early_and_is_answered(proxy: Proxy) -> None:
    proxy.half_close(1, b"INSERT", after_bytes=100_000)
    with connect(proxy) as client:
        threading.Thread(target=client.sendall, args=[b"INSERT" * 50_000]).start()
        answer = read(client, 1_000_000)
    assert answer[:100_000] == (b"INSERT" * 50_000)[:100_000]
    assert answer[100_000:] == b" 100000 bytes"
    assert proxy.half_closes == 1


def test_latency_counts_in_each_direction_and_keeps_the_order(proxy: Proxy) -> None:
    proxy.latency_seconds = 0.1
    with connect(proxy) as client:
        began = time.monotonic()
        for number in range(10):
            client.sendall(b"%d" % number)
        assert read(client, 10) == b"0123456789"
    assert time.monotonic() - began >= 0.2


def test_an_answer_may_end_in_the_middle(proxy: Proxy) -> None:
    proxy.cut(1, b"SELECT", after_bytes=3)
    with connect(proxy) as client:
        client.sendall(b"SELECT")
        assert read(client, 6) == b"SEL"
    assert proxy.cuts == 1
    with connect(proxy) as client:
        assert ask(client, b"SELECT") == b"SELECT"


def test_a_held_answer_comes_late_and_its_request_passed(proxy: Proxy) -> None:
    proxy.mute(b"INSERT")
    with connect(proxy) as one, connect(proxy) as other:
        one.sendall(b"INSERT")
        assert ask(other, b"SELECT") == b"SELECT"
        assert is_silent(one)
        proxy.pass_on()
        assert read(one, 6) == b"INSERT"
