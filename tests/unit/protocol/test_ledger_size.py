"""How large the ledger grows: what a batch adds does not depend on frames, runs or buckets, and a day of batches has its limit."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from support.leg_case import LEDGER, NAMES, LegCase, event

from pipelines.engine.connections import Means
from pipelines.protocol.records import Framing, encode_frame
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


def test_a_day_of_four_batches_a_second_is_below_200_megabytes(tmp_path: Path) -> None:
    case = LegCase(tmp_path, buckets=64)
    run_batches(case, 20, 250)
    begun = case.log.messages(LEDGER)[-1].sequence + 1
    assert len(case.listed()) > 64 * 4, "the plateau"
    run_batches(case, 20, 250)
    plain = stored(case, begun)
    # As the server does with S2, block by block; LZ4 packs alike. Measured with nats-server 2.15: 443 bytes a batch of 15,000.
    packed = len(pa.compress(plain, codec="lz4", asbytes=True))
    assert packed / 20 * BATCHES_A_DAY < DAY_BYTES
    assert max(case.chain_bytes("process")[-20:]) < 1000
    assert max(case.chain_bytes("ingest")[-20:]) < 700


def test_entries_are_as_long_for_1024_buckets_as_for_one(tmp_path: Path) -> None:
    many, one = (LegCase(tmp_path / str(buckets), buckets) for buckets in (1024, 1))
    for case in (many, one):
        run_batches(case, 2, 3000)
    assert len(many.lists()) > 900
    assert max(many.chain_bytes("process")) < max(one.chain_bytes("process")) + 50
    assert max(len(message.payload) for message in many.log.messages(NAMES.stream("runs"))) < MAX_PAYLOAD_BYTES


def test_a_done_is_as_long_for_thousands_of_frames_as_for_one(tmp_path: Path) -> None:
    case = LegCase(tmp_path, 1)

    def a_frame_for_each(records: pa.Table) -> Iterator[tuple[pa.Table, bytes]]:
        """As records of the largest size would come."""
        for at in range(records.num_rows):
            yield records.slice(at, 1), encode_frame(records.slice(at, 1))

    case.means = Means(Framing(cut=a_frame_for_each))
    case.send([b""] * 4000)
    assert case.ingest.chain.state.done.body.counts["frames"] == 4000
    assert case.chain_bytes("ingest")[-1] < 700
