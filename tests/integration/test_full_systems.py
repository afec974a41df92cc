"""Streams and disks that are full: the leg waits and says which, nothing is lost or a dead letter for it, and with room it goes on."""

import asyncio
import resource
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import nats
import psutil
import pytest
from dedup_case import check_first_of_keys, copies, keyed_by
from network_case import running, waits
from pipeline_case import PATIENCE_SECONDS, PipelineCase, wait_until

from resources.local.nats import find_nats_server
from resources.local.ports import accepts_connections, choose_port

pytestmark = pytest.mark.integration


def limit(case: PipelineCase, role: str, max_bytes: int) -> None:
    """Changes the size of a stream, as `nats stream edit` does."""

    async def change() -> None:
        client = await nats.connect(case.addresses.nats_url)
        jetstream = client.jetstream()
        config = (await jetstream.stream_info(case.names.stream(role))).config
        await jetstream.update_stream(replace(config, max_bytes=max_bytes))
        await client.close()

    asyncio.run(change())


def size(case: PipelineCase, role: str) -> int:
    log = case.log()
    state = log.state(case.names.stream(role))
    log.close()
    assert state is not None
    return state.bytes


@pytest.mark.parametrize(("role", "leg"), [("raw", "ingest"), ("dlq", "process"), ("ledger", "ingest")])
def test_a_full_stream_is_waited_for_by_its_name_and_nothing_is_lost(case: PipelineCase, role: str, leg: str) -> None:
    case.create_topic()
    with running(case) as runner:
        case.send_events(1000, bad_every=100)
        case.wait_count(case.good)
        wait_until(lambda: size(case, "dlq"), "dead letters")
        limit(case, role, size(case, role) + 100)
        case.send_events(1000, bad_every=100)
        waits(runner, leg, f"of stream {case.names.stream(role)}: JetStream error 10077")
        limit(case, role, -1)


@contextmanager
def small_files(max_bytes: int) -> Iterator[None]:
    """No file of this process may become larger: as on a full disk, what is written beyond fails with an OSError."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (max_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_below_the_key_store_is_waited_for(case: PipelineCase) -> None:
    case.write_file(keyed_by("id"))
    case.create_topic()
    case.send(copies(20_000, keys=10_007))
    runner = case.warm_runner()
    with small_files(20_000):
        thread = case.in_background(runner)
        waits(runner, "process", "reaching the key store at")
        assert case.count() == 0
    thread.join(PATIENCE_SECONDS)
    assert check_first_of_keys(case)["row"] > 9_900


@contextmanager
def nats_on_a_small_disk(directory: Path, port: int, size: str) -> Iterator[psutil.Process]:
    """A NATS server on a tmpfs in a namespace of its own, which needs no rights; gives the process that starts it anew when it ends."""
    if shutil.which("unshare") is None:
        pytest.skip("no unshare here, so no small disk without rights")
    directory.mkdir()
    script = 'mount -t tmpfs -o size="$1" none "$2" && cd "$2" || exit 3; shift 2; while :; do "$@"; done'
    server = [str(find_nats_server()), "-a", "127.0.0.1", "-p", str(port), "-js", "-sd", str(directory / "store")]
    command = ["unshare", "-rm", "sh", "-c", script, "sh", size, str(directory), *server]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: process.poll() is not None or accepts_connections(port), "a NATS server")
        if process.poll() is not None:
            pytest.skip("no user namespaces with a mount of their own here, so no small disk")
        yield psutil.Process(process.pid)
    finally:
        family = []
        if process.poll() is None:
            # Or it starts another server meanwhile.
            process.send_signal(signal.SIGSTOP)
            family = psutil.Process(process.pid).children()
        for one in (process, *family):
            one.kill()
            one.wait()


def test_a_full_disk_below_nats_is_waited_for_until_it_has_room_and_was_started_again(case: PipelineCase, tmp_path: Path) -> None:
    port = choose_port(())
    case.write_file(lambda document: document.update(nats={"url": f"nats://127.0.0.1:{port}"}))
    case.create_topic()
    with nats_on_a_small_disk(tmp_path / "disk", port, "8m") as above, running(case) as runner:
        case.send_events(1000)
        case.wait_count(1000)
        case.send_events(4000, name_bytes=2000)
        waits(runner, "ingest", "JetStream has no room left")
        room = ["nsenter", "-t", str(above.pid), "-U", "-m", "mount", "-o", "remount,size=256m", str(tmp_path / "disk")]
        subprocess.run(room, check=True, capture_output=True)
        for server in above.children():
            server.kill()
