"""Retention on real servers: what was passed on goes, the pipeline goes on from what is left, and a full stream makes its writer wait."""

import shutil
from collections.abc import Callable
from itertools import count
from typing import Any

import pytest
from support.dedup_case import copies, key_state, keyed_by, live_entries
from support.pipeline_case import PipelineCase, wait_until

from pipelines.errors import DataLossError, StateDamagedError
from pipelines.maintenance.rebuild import rebuild
from pipelines.protocol.bodies import CHAINS
from pipelines.protocol.ledger import Entry
from pipelines.protocol.positions import Position
from pipelines.protocol.purge import Purged, read_purged
from pipelines.protocol.records import HEADER_LAST
from pipelines.protocol.tally import tally
from pipelines.testing import LEGS, SINGLE

pytestmark = pytest.mark.integration


def keeping(max_age: str, max_bytes: str = "0", also: Callable[[dict[str, Any]], None] = lambda document: None) -> Callable[[Any], None]:
    def change(document: dict[str, Any]) -> None:
        document["resources"] = {"nats": {"stream": {"max_age": max_age, "max_bytes": max_bytes}}}
        also(document)

    return change


def purged(case: PipelineCase, role: str) -> Purged:
    log = case.log()
    found = read_purged(log, case.names, role)
    log.close()
    return found


def first_entry(case: PipelineCase, leg: str) -> Entry:
    """The oldest entry that a chain still has."""
    log, ledger = case.log(), case.names.stream("ledger")
    found = next(log.fetch(ledger, case.names.chain(leg), 0, log.state(ledger).last_sequence))
    log.close()
    return CHAINS[leg].decode(found)


def run_until_purged(case: PipelineCase, beyond: int = 0) -> None:
    """Runs under load until raw and out were purged up to a sequence beyond `beyond` and every chain was folded, then to its end."""
    runner = case.warm_runner(until_caught_up=False)
    thread = case.in_background(runner)
    with case.load():
        wait_until(lambda: min(purged(case, role).below for role in ("raw", "out")) > beyond, "a purge of both streams")
        wait_until(lambda: all(first_entry(case, leg).previous_done for leg in LEGS), "folded chains")
    wait_until(lambda: case.count() + len(case.dead_letters()) == case.sent, "the end of the load")
    runner.request_stop()
    thread.join()


def test_a_pipeline_goes_on_from_what_a_purge_has_left(case: PipelineCase) -> None:
    case.write_file(keeping("1s"))
    case.create_topic()
    run_until_purged(case)
    log = case.log()
    for role in ("raw", "out"):
        stream, below = case.names.stream(role), purged(case, role).below
        held = list(log.fetch(stream, case.names.subjects(role), 0, log.state(stream).last_sequence))
        kept = [message.sequence for message in held if message.sequence >= below]
        # Nothing is missing behind it, and before it there are last messages only.
        assert kept == list(range(below, held[-1].sequence + 1))
        assert len(held) - len(kept) <= len(log.subjects(stream, case.names.subjects(role)))
        assert all(HEADER_LAST in message.headers for message in held)
    # The plan of the oldest `done` that is kept.
    assert {first_entry(case, leg).kind for leg in LEGS} == {"plan"}
    log.close()
    case.check()
    run_until_purged(case, beyond=purged(case, "raw").below)
    case.check()
    case.send_events(500)
    case.warm_run()
    case.check()


def test_a_small_stream_without_its_sink_makes_ingest_wait(case: PipelineCase) -> None:
    case.write_file(keeping("24h", "8MB"))
    case.create_topic()
    case.send_events(11_000, name_bytes=1000)
    case.wait_ready(case.start_plain("--leg", "ingest", "--leg", "process"))

    def is_stuck() -> bool:
        now = case.ask()
        # Ready before the streams were looked at.
        is_full = now is not None and "raw" in now["streams"] and now["streams"]["raw"]["is_full"]
        return is_full and now["legs"]["ingest"]["state"] == "waiting"

    wait_until(is_stuck, "a full stream")
    now = case.ask()
    assert now is not None
    stream = case.names.stream("raw")
    assert f"raw stream {stream}, " in now["streams"]["raw"]["advice"]
    assert "of 8,000,000 bytes, is full: its writer waits, nothing is lost" in now["streams"]["raw"]["advice"]
    assert "the stream is full" in now["legs"]["ingest"]["message"]
    reported = case.invoke("status", str(case.file))
    assert f"nats stream edit {stream} --max-bytes=" in " ".join(reported.stdout.split())
    second = case.warm_runner(until_caught_up=False, legs=("sink",))
    case.in_background(second)
    case.wait_count(11_000)
    case.check()
    assert purged(case, "out").is_early


def feed_until(case: PipelineCase, done: Callable[[], bool], keys: int = 1499) -> None:
    """Batches of records with copies, each to the end of process, until `done`; then the runner stops."""
    runner = case.warm_runner(until_caught_up=False)
    thread = case.in_background(runner)
    for sent in count(400, 400):
        case.send(copies(400, first=sent - 400, keys=keys))
        wait_until(lambda sent=sent: runner.legs["process"].status.totals.get("rows_in", 0) >= sent, "the end of a batch")
        if done():
            break
    runner.request_stop()
    thread.join()
    case.warm_run()


def is_purged(case: PipelineCase) -> bool:
    return min(purged(case, role).below for role in ("raw", "out")) > 0


def test_copies_that_were_kept_go_with_their_ranges(case: PipelineCase) -> None:
    case.write_file(keeping("1s", also=keyed_by("id", keep_duplicates=True)))
    case.create_topic()
    log, stream, subjects = case.log(), case.names.stream("duplicates"), case.names.subjects("duplicates")

    def has_lost_some() -> bool:
        state = log.state(stream)
        return state is not None and state.messages < state.last_sequence

    feed_until(case, has_lost_some, keys=101)
    held = list(log.fetch(stream, subjects, 0, log.state(stream).last_sequence))
    assert {message.subject for message in held} == set(log.subjects(stream, subjects))
    log.close()


def accepted_at(case: PipelineCase, key: str) -> Position:
    """The raw position of the record that a key's entry is from."""
    state = key_state(case)
    accepted = state.why([key]).accepted
    state.close()
    assert accepted is not None
    return Position.parse(accepted.position)


def lose_state(case: PipelineCase) -> None:
    shutil.rmtree(case.names.directory(case.home) / "state")
    case.send(copies(10, keys=1499))
    with pytest.raises(StateDamagedError, match="tallyflow rebuild-state"):
        case.warm_run()


@pytest.mark.crash
def test_a_lost_store_is_rebuilt_from_a_longer_retention(case: PipelineCase) -> None:
    case.write_file(keeping("5s", also=keyed_by("id", window="2s")))
    case.create_topic()
    feed_until(case, lambda: is_purged(case))
    before = live_entries(case)
    assert before
    lose_state(case)
    state = key_state(case)
    rebuild(state)
    state.close()
    assert live_entries(case) == before
    case.warm_run()
    log = case.log()
    account = tally(log, case.names, SINGLE)
    log.close()
    assert (account.residue, [leg.waiting for leg in account.legs]) == (0, [0, 0, 0])


@pytest.mark.crash
def test_a_lost_store_of_purged_records_keeps_the_account_even(case: PipelineCase) -> None:
    case.write_file(keeping("1s", also=keyed_by("id", window="1h")))
    case.create_topic()
    feed_until(case, lambda: is_purged(case) and purged(case, "raw").below > accepted_at(case, "0").sequence)
    state = key_state(case)
    history = state.why(["0"])
    state.close()
    assert history.accepted is not None
    assert history.counted_from == purged(case, "raw").since
    assert "earlier records were purged" in case.invoke("why", str(case.file), "0").stdout
    lose_state(case)
    with pytest.raises(DataLossError, match="no longer holds all records whose keys have not expired"):
        rebuild(key_state(case))
    log = case.log()
    assert tally(log, case.names, SINGLE).residue == 0
    log.close()
