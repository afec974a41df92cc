"""Records that compress 250:1: memory is bounded by what they take uncompressed, in ingest and in process."""

import json
import signal

import psutil
import pytest
from support.dedup_case import keyed_by
from support.pipeline_case import PipelineCase, wait_until

from pipelines.protocol.stream_limits import MAX_CONTENT_BYTES
from pipelines.protocol.tally import tally
from pipelines.testing import SINGLE

pytestmark = pytest.mark.integration

RECORDS, VALUE_BYTES = 1200, 400_000
MOST_BYTES = {"ingest": 1_100_000_000, "process": 900_000_000}
"""Resident in the runner of one leg. Here an answer of Kafka is at most 1 MiB packed; ingest holds its 250 MB of records as Kafka's client
and as Arrow: 0.91 GB on a busy machine, however many records follow, process 0.56 GB. Without limits all 0.5 GB of records took 1.26 and
1.72 GB.
"""


def peak_bytes(case: PipelineCase, leg: str) -> int:
    """What a runner of one leg takes at the most until all records are through."""
    runner = case.fork("run", str(case.file), "--leg", leg, entry="main_with_small_answers")
    process, log, peak = psutil.Process(runner.pid), case.log(), 0

    def is_done() -> bool:
        nonlocal peak
        assert runner.poll() is None, runner.communicate()
        peak = max(peak, process.memory_info().rss)
        legs = tally(log, case.names, SINGLE).legs if log.state(case.names.stream("ledger")) else ()
        return any(one.leg == leg and sum(one.outcomes.values()) == RECORDS for one in legs)

    wait_until(is_done, f"all records through {leg}")
    log.close()
    runner.send_signal(signal.SIGTERM)
    runner.communicate()
    assert runner.returncode == 0
    return peak


def test_records_packed_250_to_1_pass_in_bounded_memory(case: PipelineCase) -> None:
    case.write_file(keyed_by("id"))
    case.create_topic()
    text = "a" * VALUE_BYTES
    values = (json.dumps({"id": number, "name": f"{number} {text}", "amount": None}).encode() for number in range(RECORDS))
    case.send(values, **{"compression.type": "lz4"})
    peaks = {leg: peak_bytes(case, leg) for leg in ("ingest", "process")}
    assert {leg: peak for leg, peak in peaks.items() if peak >= MOST_BYTES[leg]} == {}
    log = case.log()
    for role in ("raw", "out"):
        state = log.state(case.names.stream(role))
        assert state is not None
        frames = list(log.fetch(case.names.stream(role), case.names.subjects(role), 0, state.last_sequence))
        assert sum(frame.rows for frame in frames) == RECORDS
        assert max(frame.content_bytes for frame in frames) <= MAX_CONTENT_BYTES
        assert sum(frame.content_bytes for frame in frames) > RECORDS * VALUE_BYTES
    log.close()
