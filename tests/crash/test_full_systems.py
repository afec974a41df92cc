"""Streams and disks that are full: the leg waits and says which, nothing is lost or a dead letter for it, and with room it goes on."""

import asyncio
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import nats
import psutil
import pytest
from clickhouse_connect.driver.exceptions import DatabaseError
from support.dedup_case import check_first_of_keys, copies, keyed_by
from support.network_case import running, waits
from support.pipeline_case import PATIENCE_SECONDS, PipelineCase, pause, wait_until

from pipelines.connectors.clickhouse.errors import map_error
from pipelines.errors import RetryableError
from resources.local.clickhouse.service import keep_users, users_file
from resources.local.nats import find_nats_server
from resources.local.ports import accepts_connections, choose_port

pytestmark = pytest.mark.crash


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
def test_a_full_stream_is_named_and_waited_for(case: PipelineCase, role: str, leg: str) -> None:
    case.create_topic()
    with running(case) as runner:
        case.send_events(1000, bad_every=100)
        case.wait_count(case.good)
        wait_until(lambda: size(case, "dlq"), "dead letters")
        limit(case, role, size(case, role) + 100)
        case.send_events(1000, bad_every=100)
        waits(runner, leg, f"of stream {case.names.stream(role)}: JetStream error 10077")
        limit(case, role, -1)


def test_discards_make_room_beside_a_full_raw_stream(case: PipelineCase) -> None:
    case.create_topic()
    case.send([b"{"] * 30 + [b'{"id": "one", "name": "a"}'] * 20)
    case.warm_run()
    limit(case, "raw", size(case, "raw"))
    reported = case.invoke("dlq", "reprocess", str(case.file), "--all")
    assert (reported.exit_code, "the rest is left to ingest" in reported.stderr) == (1, True), reported.output
    assert f"raise it to 7110656 or more: `nats stream edit {case.names.stream('raw')} --max-bytes" in reported.stderr
    given_up = case.invoke("dlq", "discard", str(case.file), "--reason", "a test", "--yes", "--since", "2020-01-01", "--stage", "parse")
    assert (given_up.exit_code, given_up.stdout) == (0, "50 dead letters discarded\n"), given_up.output
    assert case.entered() == set()
    case.check()


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


@dataclass(frozen=True)
class SmallDisk:
    """A tmpfs in a namespace of its own, which needs no rights, and the process there that starts a server anew when it ends."""

    directory: Path
    above: psutil.Process

    def make_room(self) -> None:
        self._inside("mount", "-o", "remount,size=512m,nr_inodes=100000", str(self.directory))

    def leave_inodes(self, count: int) -> None:
        """Lets so many more files be made there."""
        found = os.statvfs(f"/proc/{self.above.pid}/root{self.directory}")
        self._inside("mount", "-o", f"remount,nr_inodes={found.f_files - found.f_ffree + count}", str(self.directory))

    def _inside(self, *command: str) -> None:
        subprocess.run(["nsenter", "-t", str(self.above.pid), "-U", "-m", *command], check=True, capture_output=True)


@contextmanager
def on_a_small_disk(directory: Path, options: str, port: int, server: Sequence[str | Path]) -> Iterator[SmallDisk]:
    """Runs a server that listens on `port` beside a disk with these mount options."""
    if shutil.which("unshare") is None:
        pytest.skip("no unshare here, so no small disk without rights")
    directory.mkdir()
    script = 'mount -t tmpfs -o "$1" none "$2" || exit 3; shift 2; while :; do "$@"; done'
    command = ["unshare", "-rm", "sh", "-c", script, "sh", options, str(directory), *map(str, server)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: process.poll() is not None or accepts_connections(port), "a server")
        if process.poll() is not None:
            pytest.skip("no user namespaces with a mount of their own here, so no small disk")
        yield SmallDisk(directory, psutil.Process(process.pid))
    finally:
        family = []
        if process.poll() is None:
            # Or it starts another server meanwhile.
            shell = psutil.Process(process.pid)
            pause(shell)
            family = shell.children()
        for one in (process, *family):
            one.kill()
            one.wait()


def test_a_full_disk_of_nats_is_waited_for_past_its_restart(case: PipelineCase, tmp_path: Path) -> None:
    port = choose_port(())
    case.write_file(lambda document: document.update(nats={"url": f"nats://127.0.0.1:{port}"}))
    case.create_topic()
    disk = tmp_path / "disk"
    server = [find_nats_server(), "-a", "127.0.0.1", "-p", str(port), "-js", "-sd", disk / "store"]
    with on_a_small_disk(disk, "size=8m", port, server) as small, running(case) as runner:
        case.send_events(1000)
        case.wait_count(1000)
        case.send_events(4000, name_bytes=2000)
        waits(runner, "ingest", "JetStream has no room left")
        small.make_room()
        for one in small.above.children():
            one.kill()


@contextmanager
def clickhouse_on_a_small_disk(case: PipelineCase, options: str) -> Iterator[SmallDisk]:
    """In place of the case's shared one."""
    disk, port = case.directory / "disk", choose_port(())
    keep_users(case.directory, ["default:secret"])
    server = [sys.executable, "-m", "resources.local.clickhouse.server", "--data", disk / "data", "--port", str(port)]
    with on_a_small_disk(disk, options, port, [*server, "--users-file", users_file(case.directory)]) as small:
        case.addresses = replace(case.addresses, clickhouse_port=port, clickhouse_user="default", clickhouse_password="secret")
        yield small


@pytest.mark.parametrize("options", ["size=64m", "size=256m,nr_inodes=600"])
def test_a_full_disk_of_clickhouse_is_waited_for(case: PipelineCase, options: str) -> None:
    with clickhouse_on_a_small_disk(case, options) as small:
        case.create_topic()
        with running(case) as runner, case.load(count=1000, bad_every=0, name_bytes=2000):
            waits(runner, "sink", "if it lasts, make room on the disk")
            before = case.count()
            small.make_room()
            wait_until(lambda: case.count() > before, "more rows")
        assert case.dead_letters() == []


def test_any_message_about_missing_inodes_is_waited_for(case: PipelineCase) -> None:
    with clickhouse_on_a_small_disk(case, "size=64m,nr_inodes=10000") as small:
        client = case.client()
        client.command("CREATE TABLE t (id Int64) ENGINE = MergeTree ORDER BY id")
        codes = set()
        # From the file that the insert comes in to the last one of the part.
        for left in range(10):
            small.leave_inodes(left)
            with pytest.raises(DatabaseError) as caught:
                client.insert("t", [[left]], ["id"])
            assert isinstance(map_error("inserting", caught.value), RetryableError)
            codes.add(caught.value.code)
        assert codes == {243, 76, 1001}
        small.make_room()
        client.insert("t", [[0]], ["id"])
        assert client.query("SELECT count() FROM t").result_rows == [(1,)]
