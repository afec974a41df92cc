"""Records that compress 250:1: memory is bounded by what they take uncompressed, in ingest and in process."""

import json
import signal

import psutil
import pytest
from dedup_case import keyed_by
from pipeline_case import PipelineCase, wait_until

from pipelines.stream_limits import MAX_CONTENT_BYTES
from pipelines.tally import tally

pytestmark = pytest.mark.integration

VALUE_BYTES = 400_000


@pytest.mark.parametrize("change", [None, keyed_by("id")], ids=["without dedup", "with dedup"])
def test_records_that_compress_250_to_1_go_through_ingest_and_process_in_bounded_memory(case: PipelineCase, change) -> None:
    import os, time
    records = int(os.environ.get("N", "1500"))
    case.write_file(change)
    case.create_topic()
    text = "a" * VALUE_BYTES
    values = (json.dumps({"id": number, "name": f"{number} {text}", "amount": None}).encode() for number in range(records))
    case.send(values, **{"compression.type": "lz4"})
    peaks = {}
    for leg in ("ingest", "process"):
        runner = case.start_plain("--leg", leg)
        process, log = psutil.Process(runner.pid), case.log()
        peak = 0

        def is_done() -> bool:
            nonlocal peak
            peak = max(peak, process.memory_info().rss)
            assert runner.poll() is None, runner.communicate()
            account = {one.leg: one for one in tally(log, case.names).legs} if log.state(case.names.stream("ledger")) else {}
            return bool(account) and sum(account[leg].outcomes.values()) == records

        wait_until(is_done, f"all records through {leg}")
        runner.send_signal(signal.SIGTERM)
        runner.communicate()
        peaks[leg] = peak / 1e6
        for role in ("raw", "out"):
            state = log.state(case.names.stream(role))
            frames = list(log.fetch(case.names.stream(role), case.names.subjects(role), 0, state.last_sequence))
            assert max((frame.content_bytes for frame in frames), default=0) <= MAX_CONTENT_BYTES
        log.close()
    print(peaks)
