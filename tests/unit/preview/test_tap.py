"""Records of a tap, over frames in memory."""

from collections.abc import Iterator
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from pipelines.config import parse
from pipelines.config.docs import EXAMPLE
from pipelines.errors import RetryableError
from pipelines.preview.tap import Tap
from pipelines.protocol.records import EMIT_FIELD, POSITION_FIELDS, Message, encode_frame

AT = datetime(2026, 11, 25, 3, 14, tzinfo=UTC)
CONFIG = parse(EXAMPLE, name="example", environment={})


def frame(sequence: int, ordinals: list[int], emits: list[int]) -> Message:
    rows = [
        {
            "order_id": f"o{ordinal}",
            "_tf_sequence": 7,
            "_tf_ordinal": ordinal,
            "_tf_topic": "orders",
            "_tf_partition": 0,
            "_tf_offset": ordinal,
        }
        | {"_tf_arrival": AT, "_tf_emit": emit}
        for ordinal, emit in zip(ordinals, emits, strict=True)
    ]
    schema = pa.schema([("order_id", pa.string()), *POSITION_FIELDS, EMIT_FIELD])
    return Message(
        f"tf.{CONFIG.pipeline_id}.out.3", sequence, AT, encode_frame(pa.Table.from_pylist(rows, schema)), {"Tf-Rows": str(len(rows))}
    )


class Log:
    """A stream of these messages; the first `away` questions have no answer."""

    def __init__(self, *messages: Message, away: int = 0) -> None:
        self.messages, self.away = messages, away

    def state(self, _: str) -> Any:
        self.away -= 1
        if self.away >= 0:
            raise RetryableError("NATS did not answer")
        return SimpleNamespace(first_sequence=1, last_sequence=self.messages[-1].sequence)

    def last(self, *_: str) -> Message:
        return self.messages[-1]

    def fetch(self, _: str, __: str, after: int, to: int) -> Iterator[Message]:
        return (message for message in self.messages if after < message.sequence <= to)


def tapped(log: Any, after: int = 0) -> list[str]:
    return [record["position"] for record in Tap(CONFIG, log, "out").records(after, lambda: log.away < 0)]


def test_rows_of_one_record_have_their_numbers() -> None:
    assert tapped(Log(frame(1, [3, 3, 4], [0, 1, 0]))) == ["7.3", "7.3.1", "7.4"]


def test_a_tap_begins_behind_its_sequence() -> None:
    assert tapped(Log(frame(1, [1], [0]), frame(2, [2], [0])), after=1) == ["7.2"]


def test_a_tap_outlasts_a_moment_without_nats(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipelines.preview.tap._POLL_SECONDS", 0.0)
    assert tapped(Log(frame(1, [1, 2], [0, 0]), away=2)) == ["7.1", "7.2"]


def test_a_tap_ends_when_nats_stays_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipelines.preview.tap._POLL_SECONDS", 0.0)
    monkeypatch.setattr("pipelines.preview.tap._PATIENCE_SECONDS", 0.0)
    with pytest.raises(RetryableError, match="NATS did not answer"):
        tapped(Log(frame(1, [1], [0]), away=10_000))
