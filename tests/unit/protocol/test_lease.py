"""The lease: who may take it and when, and how a runner learns that it has lost it."""

import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from filelock import Timeout

from pipelines.errors import FencedError, HaltError, RetryableError
from pipelines.protocol import lease as lease_module
from pipelines.protocol.lease import TTL_SECONDS, Holder, Lease, acquire_all, leg_lock, release_all
from pipelines.protocol.naming import Names
from pipelines.testing import Fault, ManualClock, MemoryLog

NAMES = Names("p")
STREAM = NAMES.stream("ledger")

Make = Callable[..., Lease]


@pytest.fixture
def lease(log: MemoryLog, clock: ManualClock, tmp_path: Path) -> Iterator[Make]:
    """Leases on hosts by name; a host has a state directory of its own. None of them outlives the test."""
    made: list[Lease] = []

    def make(host: str, wait: Callable[[float], None] = clock.sleep) -> Lease:
        made.append(Lease(log, NAMES, tmp_path / host, "sink", clock.seconds, wait))
        return made[-1]

    yield make
    log.come_back()
    for one in made:
        one.release()


def holder(log: MemoryLog, leg: str = "sink") -> Holder:
    found = log.last(STREAM, NAMES.lease(leg))
    assert found is not None
    return Holder.decode(found)


def dead(lease: Lease) -> None:
    """The process of this lease is gone: nothing renews it, nothing was given back."""
    lease.abandon()


def test_a_free_lease_is_taken_with_epoch_one(lease: Make, log: MemoryLog) -> None:
    first = lease("a")
    assert first.acquire() == 1
    assert (holder(log).epoch, holder(log).released) == (1, False)
    assert first.remaining_seconds == TTL_SECONDS


def test_a_released_lease_is_taken_at_once_by_another_host(lease: Make, log: MemoryLog, clock: ManualClock) -> None:
    first = lease("a")
    first.acquire()
    first.release()
    assert holder(log).released
    assert lease("b").acquire() == 2
    assert clock.seconds() == 0


def test_a_second_runner_on_the_same_host_is_refused(lease: Make, log: MemoryLog) -> None:
    lease("a").acquire()
    with pytest.raises(FencedError, match="on this host already holds"):
        lease("a").acquire()
    assert holder(log).epoch == 1


def test_the_same_place_is_taken_at_once_after_a_kill(lease: Make, clock: ManualClock, tmp_path: Path) -> None:
    first = lease("a")
    first.acquire()
    dead(first)
    # The kernel drops a dead process's file lock; a copy of the directory without the lock stands for that.
    (tmp_path / "a-again").mkdir()
    (tmp_path / "a-again" / "place").write_text((tmp_path / "a" / "place").read_text())
    assert lease("a-again").acquire() == 2
    assert clock.seconds() == 0


def test_another_host_waits_for_the_ttl_of_the_lease(lease: Make, clock: ManualClock) -> None:
    first = lease("a")
    first.acquire()
    dead(first)
    assert lease("b").acquire() == 2
    assert clock.seconds() == TTL_SECONDS


def test_another_host_is_refused_while_the_holder_renews(lease: Make, log: MemoryLog, clock: ManualClock) -> None:
    first = lease("a")
    first.acquire()

    def wait(seconds: float) -> None:
        clock.sleep(seconds)
        if clock.seconds() == TTL_SECONDS - 1:
            first.renew()

    second = lease("b", wait)
    with pytest.raises(FencedError, match="on another host holds"):
        second.acquire()
    assert holder(log).epoch == 1
    first.release()
    assert second.acquire() == 2


def test_a_refused_runner_gives_its_file_lock_back(lease: Make, clock: ManualClock) -> None:
    first = lease("a")
    first.acquire()

    def wait(seconds: float) -> None:
        clock.sleep(seconds)
        first.renew()

    with pytest.raises(FencedError, match="another host"):
        lease("b", wait).acquire()
    with pytest.raises(FencedError, match="another host"):
        lease("b", wait).acquire()


def test_a_release_during_the_wait_ends_it(lease: Make, clock: ManualClock) -> None:
    first = lease("a")
    first.acquire()

    def wait(seconds: float) -> None:
        clock.sleep(seconds)
        if clock.seconds() == 3:
            first.release()

    assert lease("b", wait).acquire() == 2
    assert clock.seconds() == 3


def test_of_two_waiting_hosts_one_wins(lease: Make, log: MemoryLog, clock: ManualClock) -> None:
    dying = lease("a")
    dying.acquire()
    dead(dying)
    other = lease("c")

    def wait(seconds: float) -> None:
        clock.sleep(seconds)
        if clock.seconds() == TTL_SECONDS:
            assert other.acquire() == 2

    with pytest.raises(FencedError, match="another host"):
        lease("b", wait).acquire()
    assert holder(log).epoch == 2


def test_a_renewal_moves_the_end_of_the_lease(lease: Make, clock: ManualClock) -> None:
    own = lease("a")
    own.acquire()
    clock.advance(timedelta(seconds=4))
    assert own.remaining_seconds == TTL_SECONDS - 4
    assert own.renew()
    assert own.remaining_seconds == TTL_SECONDS


def test_the_time_before_the_renewal_was_sent_counts(lease: Make, log: MemoryLog, clock: ManualClock) -> None:
    own = lease("a")
    own.acquire()
    publish = log.publish

    def slow(*args: object) -> int:
        clock.advance(timedelta(seconds=3))
        return publish(*args)

    log.publish = slow
    own.renew()
    assert own.remaining_seconds == TTL_SECONDS - 3


def test_a_runner_that_was_taken_for_dead_has_lost_its_lease(lease: Make, log: MemoryLog) -> None:
    paused = lease("a")
    paused.acquire()
    dead(paused)
    lease("b").acquire()
    assert not paused.renew()
    assert paused.lost.is_set()
    assert paused.remaining_seconds == 0
    paused.release()
    assert (holder(log).epoch, holder(log).released) == (2, False)


def test_an_outage_does_not_lose_the_lease_but_lets_it_run_out(lease: Make, log: MemoryLog, clock: ManualClock) -> None:
    own = lease("a")
    own.acquire()
    log.go_away()
    clock.advance(timedelta(seconds=11))
    assert own.renew()
    assert own.remaining_seconds == -1
    log.come_back()
    assert own.renew()
    assert (own.lost.is_set(), own.remaining_seconds) == (False, TTL_SECONDS)


@pytest.mark.parametrize("fault", list(Fault))
def test_a_renewal_without_an_answer_is_followed_by_another(lease: Make, log: MemoryLog, clock: ManualClock, fault: Fault) -> None:
    own = lease("a")
    own.acquire()
    log.fail_publish(fault)
    assert own.renew()
    log.deliver()
    clock.advance(timedelta(seconds=2))
    assert own.renew()
    assert (own.lost.is_set(), own.remaining_seconds) == (False, TTL_SECONDS)


def test_a_lost_acknowledgement_then_an_outage_is_no_takeover(lease: Make, log: MemoryLog, clock: ManualClock) -> None:
    """The server stored the renewal and went down: neither the answer nor the look-up came through."""
    own = lease("a")
    own.acquire()
    log.fail_publish(Fault.LOST_ACKNOWLEDGEMENT)
    publish = log.publish

    def then_go_away(*args: object) -> int:
        try:
            return publish(*args)
        finally:
            log.go_away()

    log.publish = then_go_away
    assert own.renew()
    log.publish = publish
    log.come_back()
    assert own.renew()
    assert (own.lost.is_set(), own.remaining_seconds) == (False, TTL_SECONDS)


def test_a_release_that_nobody_hears_is_left_to_the_ttl(lease: Make, log: MemoryLog, clock: ManualClock) -> None:
    own = lease("a")
    own.acquire()
    log.go_away()
    own.release()
    log.come_back()
    assert lease("b").acquire() == 2
    assert clock.seconds() == TTL_SECONDS


def test_a_start_without_an_answer_can_be_retried(lease: Make, log: MemoryLog) -> None:
    log.go_away()
    with pytest.raises(RetryableError):
        lease("a").acquire()
    log.come_back()
    assert lease("a").acquire() == 1


@pytest.mark.parametrize(("fault", "epoch"), [(Fault.DROPPED, 1), (Fault.LOST_ACKNOWLEDGEMENT, 2), (Fault.DELAYED, 1)])
def test_a_lease_that_may_be_taken_is_taken_again(lease: Make, log: MemoryLog, clock: ManualClock, fault: Fault, epoch: int) -> None:
    log.fail_publish(fault)
    with pytest.raises(RetryableError):
        lease("a").acquire()
    own = lease("a")
    assert own.acquire() == epoch
    log.deliver()
    assert own.renew()
    assert (holder(log).epoch, clock.seconds()) == (epoch, 0)


def test_the_legs_of_a_pipeline_may_have_different_holders(log: MemoryLog, tmp_path: Path) -> None:
    first = acquire_all(log, NAMES, tmp_path, ["ingest", "process"])
    second = acquire_all(log, NAMES, tmp_path, ["sink"])
    assert {leg: lease.holder.epoch for leg, lease in {**first, **second}.items()} == {"ingest": 1, "process": 1, "sink": 1}
    release_all([*first.values(), *second.values()])


def test_of_several_legs_all_are_taken_or_none(log: MemoryLog, tmp_path: Path) -> None:
    first = acquire_all(log, NAMES, tmp_path, ["sink"])
    with pytest.raises(FencedError, match="already holds leg sink"):
        acquire_all(log, NAMES, tmp_path, ["ingest", "process", "sink"])
    first["sink"].release()
    again = acquire_all(log, NAMES, tmp_path, ["ingest", "process", "sink"])
    assert {leg: lease.holder.epoch for leg, lease in again.items()} == {"ingest": 2, "process": 2, "sink": 2}
    release_all(again.values())


def test_what_needs_no_lease_is_done_beside_the_wait(log: MemoryLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease_module, "TTL_SECONDS", 0.5)
    dead = acquire_all(log, NAMES, tmp_path / "dead", ["sink"])["sink"]
    dead.abandon()
    done: list[bool] = []

    def meanwhile() -> None:
        with pytest.raises(Timeout):
            leg_lock(tmp_path, "sink").acquire(timeout=0)
        done.append(True)
        raise HaltError("starting Spark: not here")

    with pytest.raises(HaltError, match="not here"):
        acquire_all(log, NAMES, tmp_path, ["process", "sink"], meanwhile, patience=0.1)
    assert len(done) == 1
    assert [holder(log, leg).released for leg in ("process", "sink")] == [True, True]


def test_a_refused_start_begins_nothing(log: MemoryLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease_module, "TTL_SECONDS", 0.5)
    other = acquire_all(log, NAMES, tmp_path / "other", ["process"])
    ours = acquire_all(log, NAMES, tmp_path, ["sink"])
    with pytest.raises(FencedError, match="already holds leg sink"):
        acquire_all(log, NAMES, tmp_path, ["sink", "process"], lambda: pytest.fail("Spark was started"), patience=60)
    release_all([*other.values(), *ours.values()])


class MeetingLog(MemoryLog):
    """A log in which a publication waits for two others."""

    def __init__(self) -> None:
        super().__init__()
        self.others = threading.Barrier(3)

    def publish(self, subject: str, payload: bytes, headers: dict[str, str], expected: int) -> int:
        self.others.wait(30)
        return super().publish(subject, payload, headers, expected)


def test_leases_are_taken_and_released_side_by_side(tmp_path: Path) -> None:
    log = MeetingLog()
    release_all(acquire_all(log, NAMES, tmp_path, ["ingest", "process", "sink"]).values())
    assert [holder(log, leg).released for leg in ("ingest", "process", "sink")] == [True, True, True]


def test_a_renewal_that_is_refused_for_good_is_a_lost_lease(lease: Make, log: MemoryLog, monkeypatch: pytest.MonkeyPatch) -> None:
    held = lease("a")
    held.acquire()

    def refuse(*_: object) -> int:
        raise HaltError("publishing: the account may not")

    monkeypatch.setattr(log, "publish", refuse)
    assert not held.renew()
    assert held.lost.is_set()
    assert held.remaining_seconds == 0


def test_a_raised_epoch_is_in_the_lease_and_stays_ours(lease: Make, log: MemoryLog) -> None:
    own = lease("a")
    own.acquire()
    assert own.raise_epoch() == 2
    assert own.renew()
    assert (holder(log).epoch, own.remaining_seconds) == (2, TTL_SECONDS)


@pytest.mark.parametrize("fault", list(Fault))
def test_a_raised_epoch_of_unknown_outcome_is_passed_over(lease: Make, log: MemoryLog, fault: Fault) -> None:
    own = lease("a")
    own.acquire()
    log.fail_publish(fault)
    with pytest.raises(RetryableError):
        own.raise_epoch()
    log.deliver()
    assert own.renew()
    assert own.raise_epoch() == 3
    assert (holder(log).epoch, own.lost.is_set()) == (3, False)


def test_an_epoch_of_a_lease_taken_over_is_not_raised(lease: Make, log: MemoryLog) -> None:
    paused = lease("a")
    paused.acquire()
    dead(paused)
    lease("b").acquire()
    with pytest.raises(FencedError, match="another runner has taken this leg over"):
        paused.raise_epoch()
    assert paused.lost.is_set()
    assert holder(log).epoch == 2
