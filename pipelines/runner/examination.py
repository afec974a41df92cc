"""What a start would meet, looked at one by one: servers, topics, tables, look-up tables, and this host. All faults at once.

Changes nothing, starts neither Spark nor a JVM for it, and waits for nothing: a system that is away is a fault like any other. Each look is
the check that a start makes, so it says what the start would say.
"""

import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from pipelines.config import PipelineConfig
from pipelines.config.base import Location
from pipelines.connectors.nats.client import JetStream
from pipelines.connectors.sinks import Sink, Table, open_sink
from pipelines.connectors.sources import open_source
from pipelines.connectors.tables import fetch
from pipelines.counts import count_of
from pipelines.errors import ConfigurationError, TallyflowError
from pipelines.host import raise_file_limit
from pipelines.key_store.storage import Storage
from pipelines.lookups.spec import TableSpec
from pipelines.process.compile import compile_program
from pipelines.rollups.feeds import rollups_of
from pipelines.rollups.state import rollup_state
from pipelines.runner.options import files_needed
from pipelines.runner.preflight import CONTACT_SECONDS, check_existing_rows, existing_streams

KAFKA, NATS, CLICKHOUSE = "Kafka", "NATS", "ClickHouse"
_PORTS = {
    2181: ("", "2181 is ZooKeeper's port; Kafka's own is usually 9092"),
    4222: (NATS, "4222 is NATS's port"),
    6222: ("", "6222 is for NATS servers among each other; clients use 4222"),
    8081: ("", "8081 is usually a schema registry; Kafka's own port is usually 9092"),
    8222: ("", "8222 is NATS's monitoring port; clients use 4222"),
    9000: ("", "9000 is ClickHouse's native port; Tallyflow speaks HTTP, usually 8123, or 8443 with `secure: true`"),
    9092: (KAFKA, "9092 is Kafka's port"),
    9440: ("", "9440 is ClickHouse's native port with TLS; Tallyflow speaks HTTPS, usually 8443"),
}
"""The ports that are known, each with the system whose clients use it, and a hint for those of another system."""
_LEAST_FREE_BYTES = 1 << 30
_CLOCKS_APART_SECONDS = 5.0


class _Unfit(Exception):
    """A finding that a start cannot do with; the message says what to do."""


@dataclass(frozen=True)
class Look:
    """One look. `at`: where the file speaks of it, empty for the host. `found`: what is there. `faults`: sentences, empty if it will do."""

    what: str
    at: Location
    found: str
    faults: tuple[str, ...] = ()


def examine(config: PipelineConfig, home: Path, java: Callable[[], str]) -> Iterator[Look]:
    """Yield all looks, in the order of the data, then this host.

    `home`: where the state of pipelines is. `java`: says which Java is there, or raises a TallyflowError.
    """
    for index, source in enumerate(config.sources):
        at: Location = ("sources", index, "connection_params", "brokers")
        hints = _hints(source.connection_params.brokers, KAFKA)
        yield _look(f"{KAFKA}, source {source.source_id}", at, partial(_topic, config, source.source_id), hints)
    with closing(JetStream.of(config)) as log:
        yield _look(NATS, ("nats", "url"), lambda: _streams(config, log), _hints([config.nats.url], NATS))
        if config.state_uri:
            yield _look("key stores", ("state_uri",), lambda: _state(config.state_uri))
        tables: list[Table | None] = []
        for seen in config.by_table:
            with closing(open_sink(seen)) as sink:
                yield _sink_look(seen, sink, log, tables)
    yield from _lookup_tables(config, tables)
    yield _look("Java", (), java)
    yield _look("disk", (), lambda: _disk(home))
    yield _look("file descriptors", (), lambda: f"{raise_file_limit(files_needed(config)):,} may be open")


def _look(what: str, at: Location, check: Callable[[], str], hints: Sequence[str] = ()) -> Look:
    try:
        return Look(what, at, check())
    except (TallyflowError, _Unfit) as error:
        return Look(what, at, "", _sentences(error, hints))


def _sentences(error: Exception, hints: Sequence[str] = ()) -> tuple[str, ...]:
    if isinstance(error, ConfigurationError):
        return tuple(f"{fault.path}: {fault.message}" if fault.path else fault.message for fault in error.faults)
    return (f"{error}{''.join(f' ({hint})' for hint in hints)}",)


def _hints(addresses: Sequence[str], system: str) -> list[str]:
    """Return what is known of the ports of addresses that are another system's: for the message when no answer comes."""
    numbers = {int(found[1]) for address in addresses if (found := re.search(r":(\d+)/?$", address))}
    return [hint for number, (of, hint) in _PORTS.items() if number in numbers and of != system]


def _topic(config: PipelineConfig, source_id: str) -> str:
    with closing(open_source(config, source_id)) as source:
        facts = source.facts(CONTACT_SECONDS)
        ends, _ = source.known_ends(facts.partitions, CONTACT_SECONDS)
        starts = source.starts(facts.partitions)
        missing = len(facts.partitions) - len(ends)
        records = sum(end - starts.get(partition, 0) for partition, end in ends.items())
    without = f", {count_of(missing, 'partition')} without an answer" if missing else ""
    return (
        f"{source.words.noun} {source.words.name}: {count_of(len(facts.partitions), 'partition')}, {count_of(records, 'offset')}{without}"
    )


def _streams(config: PipelineConfig, log: JetStream) -> str:
    log.connect()
    streams = existing_streams(config, log).values()
    held = [state.name for state in streams if state is not None]
    if not held:
        return "JetStream answers; the first start makes the pipeline's streams"
    apart = abs((log.clock(held[0]) - datetime.now(UTC)).total_seconds())
    if apart > _CLOCKS_APART_SECONDS:
        raise _Unfit(f"comparing clocks: NATS's and this host's are {apart:.0f} s apart; set both by NTP")
    return f"JetStream answers; {len(held)} of {count_of(len(streams), 'stream')} of the pipeline are there"


def _state(uri: str) -> str:
    Storage.at(uri).check()
    return f"{uri} can be reached"


def _sink_look(config: PipelineConfig, sink: Sink, log: JetStream, tables: list[Table | None]) -> Look:
    """Look at one table; add it to `tables`, None if it is not there."""
    at, found = (*config.sink_at, "table"), ""
    faults: list[str] = []
    table: Table | None = None
    try:
        table = sink.inspect(config.sink.connection_params.database, config.sink.table)
        found = _described(config, table)
    except (TallyflowError, _Unfit) as error:
        faults += _sentences(error, _hints([f":{config.sink.connection_params.port}"], CLICKHOUSE))
        at = (*config.sink_at, "connection_params", "host")
    tables.append(table)
    for check in _checks(config, sink, log, table) if table is not None else ():
        try:
            check()
        except (TallyflowError, _Unfit) as error:
            faults += _sentences(error)
    name = f"{CLICKHOUSE}, sink {config.sink.id}" if config.sink.id else CLICKHOUSE
    return Look(name, at, found, tuple(dict.fromkeys(faults)))


def _described(config: PipelineConfig, table: Table | None) -> str:
    if table is not None:
        return f"table {table.full_name}: {table.engine}, {count_of(len(table.columns), 'column')}"
    full_name = f"{config.sink.connection_params.database}.{config.sink.table}"
    if not config.sink.create_table:
        raise _Unfit(f"checking table {full_name}: it does not exist; create it (`tallyflow ddl` prints how), or set `create_table: true`")
    return f"table {full_name}: the first start makes it"


def _checks(config: PipelineConfig, sink: Sink, log: JetStream, table: Table) -> Iterator[Callable[[], object]]:
    yield from sink.checks(table)
    yield lambda: check_existing_rows(config, log, sink, table)
    if rollups_of(config):
        yield lambda: rollup_state(config, sink).check(table)


def _lookup_tables(config: PipelineConfig, tables: Sequence[Table | None]) -> Iterator[Look]:
    """Yield a look at each look-up table, read as the first plan would read it; none while a table of a sink is missing."""
    if not config.tables or None in tables:
        return
    try:
        specs = compile_program(config, [table for table in tables if table is not None]).lookups
    except ConfigurationError as error:
        yield Look("look-up tables", ("tables",), "", _sentences(error))
        return
    for name, spec in specs.items():
        yield _look(f"look-up table {name}", ("tables", name), partial(_rows_of, config, name, spec))


def _rows_of(config: PipelineConfig, name: str, spec: TableSpec) -> str:
    return f"{count_of(fetch(name, config.tables[name], spec).num_rows, 'row')} with a key"


def _disk(home: Path) -> str:
    place = next(path for path in (home, *home.absolute().parents) if path.exists())
    free = shutil.disk_usage(place).free
    if free < _LEAST_FREE_BYTES:
        raise _Unfit(f"looking at the disk of {home}: {free / 2**20:,.0f} MiB are free, a pipeline needs at least 1,024; free some")
    return f"{free / 2**30:,.0f} GiB free for {home}"
