"""What a runner notes when its legs halt, or could not start."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest

from pipelines.config.docs import EXAMPLE
from pipelines.control.control import by_halt, read_halts
from pipelines.errors import FencedError, HaltError
from pipelines.runner.halts import halts_noted
from pipelines.testing import LEGS


def a_second_later_each_time() -> Iterator[datetime]:
    now = datetime(2026, 11, 28, 12, tzinfo=UTC)
    while True:
        yield now
        now += timedelta(seconds=1)


@pytest.fixture(autouse=True)
def moving(monkeypatch: pytest.MonkeyPatch) -> None:
    times = a_second_later_each_time()
    for module in ("runner.halts", "control.control"):
        monkeypatch.setattr(f"pipelines.{module}.datetime", SimpleNamespace(now=lambda zone: next(times)), raising=False)


def a_runner(directory: Path, **failures: Exception) -> SimpleNamespace:
    legs = {name: SimpleNamespace(failure=failures.get(name)) for name in LEGS}
    return SimpleNamespace(legs=legs, options=SimpleNamespace(legs=LEGS), leases=dict.fromkeys(LEGS), directory=directory, text=EXAMPLE)


def test_legs_that_could_not_start_share_one_halt(tmp_path: Path) -> None:
    with pytest.raises(HaltError), halts_noted(a_runner(tmp_path)):
        raise HaltError("its table is missing")
    ((halt, legs),) = by_halt(read_halts(tmp_path)).items()
    assert (halt.message, halt.at, legs) == ("its table is missing", "2026-11-28T12:00:00+00:00", "ingest, process, sink")


def test_each_leg_that_halted_has_its_own_words(tmp_path: Path) -> None:
    failures = {"ingest": HaltError("the topic is gone"), "process": FencedError("another runner"), "sink": HaltError("the table is gone")}
    with pytest.raises(HaltError), halts_noted(a_runner(tmp_path, **failures)):
        raise HaltError("two legs halted")
    assert {leg: halt.message for leg, halt in read_halts(tmp_path).items()} == {"ingest": "the topic is gone", "sink": "the table is gone"}


def test_a_runner_that_was_fenced_notes_no_halt(tmp_path: Path) -> None:
    with pytest.raises(FencedError), halts_noted(a_runner(tmp_path)):
        raise FencedError("another runner has taken the lease")
    assert read_halts(tmp_path) == {}
