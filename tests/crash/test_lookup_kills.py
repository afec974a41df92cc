"""A table that changes every second under a runner that is killed: each value is that of the snapshot that its covering plan names."""

import os
import random
import threading
import time
from functools import partial

import pytest
from support.lookup_case import assert_proven, differences, digests_in_order, entries, event, save, write
from support.pipeline_case import PipelineCase, meanwhile, wait_until

pytestmark = [pytest.mark.crash, pytest.mark.usefixtures("brief_inserts")]
KILLS = int(os.environ.get("TALLYFLOW_LOOKUP_KILLS", "4"))
SHARE = int(os.environ.get("TALLYFLOW_LOOKUP_SHARE", "100"))
"""Records that are sent at once."""
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

    def send(count: int) -> None:
        nonlocal sent
        case.send([event(sent + one, chance.choice(CODES)) for one in range(count)])
        sent += count

    def has_new_snapshots(known: int) -> bool:
        send(SHARE)
        return len(digests_in_order(case)) > known

    def has_ended_on_another_snapshot() -> bool:
        send(100)
        case.warm_run()
        return len(digests_in_order(case)) > KILLS

    with meanwhile(change):
        for _ in range(KILLS):
            known = len(digests_in_order(case))
            process = case.start_plain()
            wait_until(partial(has_new_snapshots, known), "a range with another snapshot")
            for _ in range(chance.randrange(6)):
                send(SHARE)
                time.sleep(chance.uniform(0, 0.4))
            process.kill()
            process.wait()
        # Whether the last kill, or the end, comes before another snapshot is chance.
        wait_until(has_ended_on_another_snapshot, "a run to its end on another snapshot")
    epochs = {one["epoch"] for one in entries(case)}
    assert len(digests_in_order(case)) > KILLS
    assert len(epochs) > KILLS
    assert differences(case) == []
    assert_proven(case)
    print(f"{case.count():,} rows, {len(digests_in_order(case))} snapshots, {len(epochs)} epochs")
