"""A table that changes every second under a runner that is killed: each value is that of the snapshot that its covering plan names."""

import os
import random
import threading
import time

import pytest
from support.lookup_case import assert_proven, differences, digests_in_order, entries, event, save, write
from support.pipeline_case import PipelineCase, meanwhile

pytestmark = [pytest.mark.crash, pytest.mark.usefixtures("brief_inserts")]
KILLS = int(os.environ.get("TALLYFLOW_LOOKUP_KILLS", "4"))
RECORDS = int(os.environ.get("TALLYFLOW_LOOKUP_RECORDS", "20000"))
CODES = [f"code {number}" for number in range(50)]


def test_each_value_is_that_of_the_snapshot_of_its_plan(case: PipelineCase) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    write(case)
    save(case, dict.fromkeys(CODES, -1.0))
    case.create_topic()

    def change(stop: threading.Event) -> None:
        version = 0
        while not stop.wait(1):
            version += 1
            save(case, {code: version * 1000 + number for number, code in enumerate(CODES)})

    sent = 0
    with meanwhile(change):
        for _ in range(KILLS):
            process = case.start_plain()
            until = time.monotonic() + chance.uniform(1.5, 5)
            while time.monotonic() < until:
                share = max(1, RECORDS // KILLS // 20)
                case.send([event(sent + one, chance.choice(CODES)) for one in range(share)])
                sent += share
                time.sleep(0.05)
            process.kill()
            process.wait()
        case.send([event(sent + one, chance.choice(CODES)) for one in range(100)])
        case.warm_run()
    epochs = {one["epoch"] for one in entries(case)}
    assert len(digests_in_order(case)) > KILLS
    assert len(epochs) > KILLS
    assert differences(case) == []
    assert_proven(case)
    print(f"{case.count():,} rows, {len(digests_in_order(case))} snapshots, {len(epochs)} epochs")
