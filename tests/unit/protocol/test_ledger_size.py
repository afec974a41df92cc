"""How large the ledger grows: what a batch adds does not depend on frames, runs or buckets, and a day of batches has its limit."""

from pathlib import Path

import pyarrow as pa
import pytest
from support.leg_case import LEDGER, NAMES, LegCase, event

from pipelines.ingest.writer import PartitionWriter
from pipelines.testing import MAX_PAYLOAD_BYTES

BATCHES_A_DAY = 4 * 86_400
DAY_BYTES = 200_000_000


def run_batches(case: LegCase, batches: int, records: int) -> None:
    for number in range(batches):
        case.send([event(number * records + one) for one in range(records)])
        case.go_on()


def stored(case: LegCase, first: int) -> bytes:
    """The ledger from a sequence on as the server lays it down: per message a header of its own, the subject, the headers, the content."""
    found = [message for message in case.log.messages(LEDGER) if message.sequence >= first]
    headers = "NATS/1.0\r\nNats-Expected-Last-Subject-Sequence: {}\r\n\r\n"
    return b"".join(
        m.sequence.to_bytes(22, "big") + m.subject.encode() + headers.format(m.sequence - 1).encode() + m.payload + bytes(8) for m in found
    )


def test_a_day_of_four_batches_a_second_is_below_200_megabytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = LegCase(tmp_path, monkeypatch, buckets=64)
    run_batches(case, 20, 250)
    begun = case.log.messages(LEDGER)[-1].sequence + 1
    assert len(case.listed()) > 64 * 4, "the plateau"
    run_batches(case, 40, 250)
    plain = stored(case, begun)
    # As the server does with S2, block by block; LZ4 packs alike. Measured with nats-server 2.15: 443 bytes a batch of 15,000.
    packed = len(pa.compress(plain, codec="lz4", asbytes=True))
    assert packed / 40 * BATCHES_A_DAY < DAY_BYTES
    assert max(case.chain_bytes("process")[-20:]) < 1000
    assert max(case.chain_bytes("ingest")[-20:]) < 700


def test_entries_are_as_long_for_1024_buckets_as_for_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    many, one = (LegCase(tmp_path / str(buckets), monkeypatch, buckets) for buckets in (1024, 1))
    for case in (many, one):
        run_batches(case, 2, 3000)
    assert len(many.lists()) > 900
    assert max(many.chain_bytes("process")) < max(one.chain_bytes("process")) + 50
    assert max(len(message.payload) for message in many.log.messages(NAMES.stream("runs"))) < MAX_PAYLOAD_BYTES


def test_a_done_is_as_long_for_thousands_of_frames_as_for_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = LegCase(tmp_path, monkeypatch, 1)
    write = PartitionWriter.write

    def in_single_records(self: PartitionWriter, records: pa.Table, next_offset: int) -> None:
        """As records of the largest size would come: a frame for each."""
        for at in range(records.num_rows):
            write(self, records.slice(at, 1), next_offset - records.num_rows + at + 1)

    monkeypatch.setattr(PartitionWriter, "write", in_single_records)
    case.send([b""] * 4000)
    assert case.ingest.chain.state.done.body.counts["frames"] == 4000
    assert case.chain_bytes("ingest")[-1] < 700
