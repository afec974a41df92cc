"""The rows that wait between process and ClickHouse when a pipeline starts, and their fit with the current file and table.

Rows on out keep the columns of the configuration under which they were made, so an edit of the file, or an ALTER of the table, may come
between them and their insert. If a start could not deliver them, it is refused before it has any effect.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from pipelines.connectors.nats.client import JetStream
from pipelines.connectors.sinks import Table, TableColumn
from pipelines.errors import HaltError
from pipelines.process import stage_config
from pipelines.process.program import Program
from pipelines.protocol.bodies import PROCESS_CHAIN
from pipelines.protocol.ledger import read_chain
from pipelines.protocol.naming import Names
from pipelines.protocol.records import Message, decode_columns
from pipelines.protocol.topology import LegId
from pipelines.sink.fit import keeps_null, misfits, way_on

_SCANNED_AT_ONCE = 10_000


@dataclass
class Waiting:
    """Unconfirmed rows on out that were made under one configuration: their number, and the sequences between which they are (inclusive).

    `rows` is 0 for a range that process has begun under that configuration and not finished.
    """

    version: str
    rows: int = 0
    first: int = 0
    last: int = 0

    def __str__(self) -> str:
        if not self.rows:
            return f"process has begun a range under an earlier configuration ({self.version}), whose rows"
        return f"{self.rows:,} rows wait for the sink that were made under an earlier configuration ({self.version}), which"


def check_waiting(log: JetStream, names: Names, now: Program, table: Table, option: str) -> None:
    """Raise HaltError, with every fault, for waiting rows that were made for another table, or do not fit `table` any more.

    `now`: the configuration of this start, seen from the sink leg, which `--leg` names `option`. Rows that were made under it fit: it was
    made from `table`.
    """
    stored = log.subjects(names.stream("ledger"), names.config(">"))
    if not {*stored} - {names.config(now.version)}:
        return
    leg = LegId.parse(now.leg)
    for waiting in waiting_rows(log, names, leg):
        if waiting.version == now.version:
            continue
        if not waiting.version:
            raise HaltError(
                f"starting pipeline {names.pipeline}: {waiting.rows:,} rows wait for the sink and name no configuration: an older release "
                "wrote them, start that one once with --until-caught-up; or somebody else did, and only Tallyflow may write to its streams"
            )
        config = stage_config.load(log, names, waiting.version).seen_from(leg)
        faults = [f"they were made for table {config.full_table}"] if config.full_table != now.full_table else []
        faults = faults or _faults(log, names, config, waiting, now.position_columns, table.columns)
        if faults:
            raise HaltError(
                f"starting pipeline {names.pipeline}: {waiting} do not fit table {now.full_table} as it is now: {'; '.join(faults)}. "
                f"Nothing was started. {way_on(names.pipeline, option)}"
            )


def waiting_rows(log: JetStream, names: Names, leg: LegId) -> Iterator[Waiting]:
    """Yield the rows that a sink leg has not confirmed, by their configuration, in the order of their first rows.

    The range that process has begun comes last.
    """
    stream = names.stream(leg.input_role)
    found: dict[str, Waiting] = {}
    state = log.state(stream)
    for message in headers(log, stream, read_chain(log, names, leg.chain).to or 0, state.last_sequence if state else 0):
        if message.rows:
            waiting = found.setdefault(message.config, Waiting(message.config, 0, message.sequence))
            waiting.rows, waiting.last = waiting.rows + message.rows, message.sequence
    plan = read_chain(log, names, PROCESS_CHAIN).plan
    if plan is not None:
        found.setdefault(plan.body.config, Waiting(plan.body.config))
    yield from found.values()


def headers(log: JetStream, stream: str, after: int, last: int) -> Iterator[Message]:
    """Yield the messages with `after` < sequence <= `last` without their payloads, however many."""
    for start in range(after, last, _SCANNED_AT_ONCE):
        yield from log.scan(stream, start, min(start + _SCANNED_AT_ONCE, last))


def _faults(
    log: JetStream, names: Names, config: Program, waiting: Waiting, position_columns: Sequence[str], columns: Sequence[TableColumn]
) -> list[str]:
    taking = {column.name for column in columns if column.default_kind not in ("MATERIALIZED", "ALIAS")}
    lost = {column.name for column in columns if column.name in taking and not _takes_null(column)}
    in_doubt = [target.name for target in config.targets if target.takes_null and target.name in lost]
    return misfits(config, position_columns, columns, _with_nulls(log, names, LegId.parse(config.leg), waiting, in_doubt))


def _takes_null(column: TableColumn) -> bool:
    """Return `keeps_null`; True for an unknown type, which no row fits anyway."""
    try:
        return keeps_null(column)
    except ValueError:
        return True


def _with_nulls(log: JetStream, names: Names, leg: LegId, waiting: Waiting, columns: Collection[str]) -> set[str]:
    """Return the `columns` in which a waiting row has a null."""
    found: set[str] = set()
    if not columns or not waiting.rows:
        return found
    role = leg.input_role
    for message in log.fetch(names.stream(role), names.subjects(role), waiting.first - 1, waiting.last):
        if message.rows and message.config == waiting.version:
            table = decode_columns(message.payload, list(columns))
            found |= {name for name in columns if table.column(name).null_count}
    return found
