"""The dead-letter stream of one pipeline, as commands look at it: by cause, as a list, and one by one. Read only."""

from collections.abc import Iterator

import pyarrow as pa

from pipelines.config import PipelineConfig
from pipelines.connectors.jetstream import JetStream, check_contiguous
from pipelines.naming import Names
from pipelines.records import Position, decode_frame
from pipelines.triage import Group, Selection, groups, letter_at, listed


class DeadLetters:
    """Connects at first use. Methods raise RetryableError when NATS is away, DataLossError for a gap in the stream."""

    def __init__(self, config: PipelineConfig) -> None:
        self._names = Names(config.pipeline_id)
        self._log = JetStream(config.nats)

    def close(self) -> None:
        self._log.close()

    def groups(self, selection: Selection) -> list[Group]:
        return groups(self._letters(), selection)

    def list(self, selection: Selection, limit: int) -> tuple[pa.Table, int]:
        return listed(self._letters(), selection, limit)

    def at(self, position: Position) -> pa.Table:
        return letter_at(self._letters(), position)

    def _letters(self) -> Iterator[pa.Table]:
        return read_letters(self._log.connect(), self._names)


def read_letters(log: JetStream, names: Names) -> Iterator[pa.Table]:
    """Every dead letter of a pipeline, one stored frame at a time, in the stream's order; nothing where there is no stream.

    Raises DataLossError for a gap in the stream, and as the log does.
    """
    stream = names.stream("dlq")
    state = log.state(stream)
    if state is None or state.messages == 0:
        return
    sequence = state.first_sequence - 1
    for message in log.fetch(stream, names.subjects("dlq"), sequence, state.last_sequence):
        check_contiguous(stream, [message.sequence], sequence, message.sequence)
        sequence = message.sequence
        yield decode_frame(message.payload)
    check_contiguous(stream, [], sequence, state.last_sequence)
