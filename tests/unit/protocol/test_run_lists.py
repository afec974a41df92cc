"""Which runs are live: pages of the ledger, what a `done` says of them, and what becomes of them when an answer is lost."""

from dataclasses import replace
from datetime import timedelta

import pytest

from pipelines.errors import DataLossError, RetryableError
from pipelines.protocol.bodies import PROCESS_CHAIN, PageReference, ProcessDone, ProcessPlan
from pipelines.protocol.codec import to_text
from pipelines.protocol.ledger import Chain
from pipelines.protocol.naming import Names
from pipelines.protocol.purge import Purge
from pipelines.protocol.run_lists import MOST_CHANGES, Lists, RunLists, live_lists
from pipelines.protocol.topology import LegId
from pipelines.testing import MAX_PAYLOAD_BYTES, SINGLE, Fault, MemoryLog

NAMES = Names("p")
LEDGER, STREAM = NAMES.stream("ledger"), NAMES.stream("runs")


def run(number: int, rows: int = 7) -> list[object]:
    return [f"{number}-{number + 1}.{number + 1}.{number:012x}.arrow", rows, 1_795_369_644_123_456 + number, f"{number:032x}"]


def pages(log: MemoryLog) -> list[bytes]:
    return [message.payload for message in log.messages(STREAM)]


def written(log: MemoryLog, *each: Lists) -> PageReference | None:
    """What a last `done` refers to after these lists, one batch after the other."""
    lists, page = RunLists(log, NAMES), None
    for one in each:
        page = lists.write(page, one)
    return page


@pytest.mark.parametrize(
    "after",
    [
        {"0": [run(1), run(2), run(3)], "7": [run(4)]},
        {"0": [run(2)], "7": [run(4)]},
        {"0": [run(9), run(2), run(3)], "7": []},
        {"0": [run(1), run(9)]},
        {"0": [run(2), run(1)], "7": [run(4)]},
        {"0": [run(1, rows=8), run(2)], "3": [run(5)], "7": [run(4)]},
        {},
    ],
    ids=["added", "dropped", "replaced by a compaction", "merged, a bucket gone", "in another order", "another run of the name", "none"],
)
def test_what_was_written_is_read_by_another_process(after: Lists) -> None:
    log = MemoryLog()
    page = written(log, {"0": [run(1), run(2)], "7": [run(4)]}, after)
    assert RunLists(log, NAMES).of(page) == {bucket: listing for bucket, listing in after.items() if listing}


def test_a_batch_without_a_change_writes_nothing() -> None:
    log = MemoryLog()
    lists = RunLists(log, NAMES)
    page = lists.write(None, {"0": [run(1)], "1": []})
    assert lists.write(page, {"0": [run(1)]}) == page
    assert len(pages(log)) == 1


def test_a_reference_is_short_and_pages_bounded_for_any_buckets() -> None:
    log = MemoryLog()
    many = {str(bucket): [run(1000 * bucket + number) for number in range(40)] for bucket in range(1024)}
    page = written(log, many)
    assert len(to_text(page)) < 120
    assert len(pages(log)) > 10
    assert max(map(len, pages(log))) < MAX_PAYLOAD_BYTES // 2
    assert RunLists(log, NAMES).of(page) == many


def test_lists_are_rewritten_at_times_and_older_pages_may_go() -> None:
    log = MemoryLog()
    chain = Chain(log, NAMES, PROCESS_CHAIN, 1)
    chain.open()
    lists, listing = RunLists(log, NAMES), []
    for number in range(5 * MOST_CHANGES):
        listing = [*listing[-20:], run(number)]
        chain.plan(ProcessPlan(start=number, to=number + 1, config="v"))
        runs = lists.write(chain.state.done.body.runs if chain.state.done else None, {"3": listing})
        chain.done(ProcessDone(start=number, to=number + 1, config="v", runs=runs))
        Purge(log, NAMES, SINGLE, LegId.parse("process"), max_age=timedelta(0))._purge_run_lists()
    assert len(pages(log)) <= MOST_CHANGES + 1
    assert sum(map(len, pages(log))) < 20_000
    assert live_lists(log, NAMES)[1] == {"3": listing}


def test_a_missing_or_changed_page_is_a_loss_with_its_remedy() -> None:
    log = MemoryLog()
    page = written(log, {"0": [run(1)]}, {"0": [run(1), run(2)]})
    with pytest.raises(DataLossError, match=r"another one.*rebuild-state"):
        RunLists(log, NAMES).of(replace(page, digest="0"))
    log.purge(STREAM, NAMES.run_lists(), page.last)
    with pytest.raises(DataLossError, match=r"is missing.*rebuild-state"):
        RunLists(log, NAMES).of(page)


@pytest.mark.parametrize("fault", list(Fault))
def test_a_page_of_unknown_outcome_is_written_again(fault: Fault) -> None:
    log = MemoryLog()
    lists = RunLists(log, NAMES)
    page = lists.write(None, {"0": [run(1)]})
    log.fail_publish(fault)
    with pytest.raises(RetryableError):
        lists.write(page, {"0": [run(1), run(2)]})
    log.deliver()
    after = lists.write(page, {"0": [run(1), run(2)]})
    assert RunLists(log, NAMES).of(after) == lists.of(after) == {"0": [run(1), run(2)]}
    assert RunLists(log, NAMES).of(page) == {"0": [run(1)]}


def test_pages_of_a_runner_that_was_overtaken_do_not_count() -> None:
    log = MemoryLog()
    own, other = RunLists(log, NAMES), RunLists(log, NAMES)
    page = own.write(None, {"0": [run(1)]})
    other.write(page, {"0": [run(1), run(8)]})
    after = own.write(page, {"0": [run(1), run(2)]})
    assert RunLists(log, NAMES).of(after) == {"0": [run(1), run(2)]}
