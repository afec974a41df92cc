"""Key stores in a real S3 object store: what one host writes another reads, and the faults of the store and of the way to it."""

from collections.abc import Iterator
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pytest
from support.dedup_case import check_first_of_keys, copies, keyed_by
from support.network_case import stop, waits
from support.object_store import BUCKET, ObjectStore
from support.pipeline_case import PipelineCase
from support.proxy import HOST, Proxy

from pipelines.errors import HaltError, RetryableError
from pipelines.key_store.segments import Entries
from pipelines.key_store.storage import Storage
from pipelines.key_store.store import KeyedStore

pytestmark = pytest.mark.integration

LARGE = pa.record_batch({"number": np.arange(2_000_000)})


@pytest.fixture
def proxy(object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """Before the store; this process reaches it by `_uri`, and has its login in the environment."""
    for name, value in object_store.environment().items():
        monkeypatch.setenv(name, value)
    with Proxy(object_store.port) as before:
        yield before


def _uri(proxy: Proxy, bucket: str = BUCKET) -> str:
    return f"s3://{bucket}/{uuid4().hex}?region=us-east-1&scheme=http&endpoint_override={HOST}:{proxy.port}"


def _keys(first: int, count: int) -> Entries:
    hi = np.arange(first, first + count, dtype=np.uint64)
    return Entries(hi, hi, np.zeros(count, np.int64), hi, np.zeros(count, np.uint32))


def test_another_host_reads_what_was_stored(proxy: Proxy) -> None:
    uri = _uri(proxy)
    writer, reader = KeyedStore(Storage.at(uri)), KeyedStore(Storage.at(uri))
    for number in range(20):
        writer.open(writer.add(_keys(1000 * number, 1000), (number, number + 1), -1, True))
    reader.open(writer.live)
    assert reader.find(_keys(0, 20_000).hi, _keys(0, 20_000).lo).is_found.all()
    assert not reader.find(_keys(20_000, 10).hi, _keys(20_000, 10).lo).is_found.any()
    names = reader.storage.names()
    assert len(names) == 20 > len(writer.live)
    for name in names[:5]:
        reader.storage.delete(name)
    assert writer.storage.names() == names[5:]
    with pytest.raises(FileExistsError):
        writer.storage.write(names[5], LARGE, {})
    reader.storage.delete_all()
    assert writer.storage.names() == []


@pytest.mark.crash
def test_an_upload_that_is_cut_off_is_never_seen(proxy: Proxy) -> None:
    storage = Storage.at(_uri(proxy))
    proxy.half_close(1000, b"PUT /", after_bytes=200_000)
    with pytest.raises(RetryableError, match="reaching the key store at "):
        storage.write("segment", LARGE, {b"made": b"here"})
    assert proxy.half_closes > 0
    assert storage.names() == []
    with pytest.raises(FileNotFoundError):
        storage.read("segment")
    proxy.half_close(0, b"", after_bytes=0)
    storage.write("segment", LARGE, {b"made": b"here"})
    batch, header = storage.read("segment")
    assert batch.equals(LARGE)
    assert header == {b"made": b"here"}


def test_a_bucket_that_does_not_exist_is_named_at_the_start(case: PipelineCase, proxy: Proxy) -> None:
    case.write_file(lambda document: (keyed_by("id")(document), document.update(state_uri=_uri(proxy, "no-such-bucket"))))
    case.create_topic()
    with pytest.raises(HaltError, match=r"at no-such-bucket/.*: bucket no-such-bucket: there is no such bucket: make it, or correct"):
        case.warm_run()
    assert case.count() == 0


def test_a_bucket_that_is_deleted_meanwhile_is_named(proxy: Proxy) -> None:
    storage = Storage.at(_uri(proxy, "no-such-bucket"))
    with pytest.raises(HaltError, match="there is no such bucket: make it"):
        storage.write("segment", LARGE, {})


@pytest.mark.crash
def test_a_leg_waits_for_an_object_store_that_is_away(case: PipelineCase, proxy: Proxy) -> None:
    case.write_file(lambda document: (keyed_by("id")(document), document.update(state_uri=_uri(proxy))))
    case.create_topic()
    case.send(copies(1500))
    case.warm_run()
    runner = case.warm_runner(until_caught_up=False)
    case.in_background(runner)
    proxy.refuse()
    case.send(copies(3000, first=1500, keys=1499))
    waits(runner, "process", "reaching the key store at")
    proxy.pass_on()
    case.wait_count(1499)
    stop(case, runner)
    case.warm_run()
    assert check_first_of_keys(case)["row"] == 1499


@pytest.mark.crash
def test_a_slow_object_store_only_takes_longer(case: PipelineCase, proxy: Proxy) -> None:
    proxy.latency_seconds = 0.2
    case.write_file(lambda document: (keyed_by("id")(document), document.update(state_uri=_uri(proxy), buckets=2)))
    case.create_topic()
    case.send(copies(1500))
    case.warm_run()
    case.send(copies(1500, first=1500))
    case.warm_run()
    assert proxy.connections > 0
    assert check_first_of_keys(case)["row"] == 701
