"""Deletes a pipeline for good: its streams, its directory on this host, its key stores and the table that it created."""

import shutil
from contextlib import closing
from pathlib import Path

from pipelines.config import ClickHouseSink, PipelineConfig
from pipelines.connectors.clickhouse.client import ClickHouse
from pipelines.connectors.nats.client import JetStream
from pipelines.key_store.storage import Storage
from pipelines.protocol.existence import never_started
from pipelines.protocol.lease import acquire_all
from pipelines.protocol.naming import PUT_BACK, REDRIVE, Names, all_roles
from pipelines.rollups.feeds import rollups_of


class Deletion:
    """The deletion of a pipeline. What is dropped is what the file lets us create: tables, rollups; nothing if tables are kept."""

    def __init__(self, config: PipelineConfig, directory: Path, keep_table: bool) -> None:
        self._config, self._directory = config, directory
        self._names = Names(config.pipeline_id)
        self._state_storage = self._names.state_storage(directory, config.state_uri)
        self._dropped = [
            seen.sink for seen in config.by_table if seen.sink.create_table and not seen.sink.names_pipeline and not keep_table
        ]
        self._without_rollups = [seen.sink for seen in config.by_sink if rollups_of(seen) and seen.sink.create_rollups and not keep_table]

    def lines(self) -> list[str]:
        """Return one line per object to delete. Raise HaltError if the pipeline was never started and its table does not exist."""
        with closing(JetStream.of(self._config).connect()) as log:
            states = {role: log.state(self._names.stream(role)) for role in all_roles(self._config.streams, self._config.topology.outs)}
        streams = {self._names.stream(role): state for role, state in states.items() if state}
        if not streams and not self._directory.exists() and not any(map(_exists, self._dropped)):
            raise never_started(self._config.pipeline_id)
        lines = [f"stream {name} ({state.messages:,} messages, {state.bytes:,} bytes)" for name, state in streams.items()]
        lines.append(f"directory {self._directory}")
        if self._config.state_uri:
            lines.append(f"key stores {self._state_storage}")
        for sink in self._without_rollups:
            database = sink.connection_params.database
            lines += [f"rollup {database}.{rollup.name}, its tables and views" for rollup in sink.rollups]
        lines += [f"table {sink.connection_params.database}.{sink.table} with all its rows" for sink in self._dropped]
        return lines

    def run(self) -> None:
        """Delete the pipeline, holding all leases, so that no runner is at work. Raise FencedError if one is. Safe to repeat."""
        with closing(JetStream.of(self._config).connect()) as log:
            self._directory.mkdir(parents=True, exist_ok=True)
            if log.state(self._names.stream("ledger")) is not None:
                for lease in acquire_all(log, self._names, self._directory, (*self._config.topology.legs, REDRIVE, PUT_BACK)).values():
                    lease.abandon()
            for sink in self._without_rollups:
                with closing(ClickHouse(sink)) as clickhouse:
                    # Views first: an insert never meets one without its target.
                    for name in (name for rollup in sink.rollups for name in reversed(rollup.relations)):
                        clickhouse.drop_table(sink.connection_params.database, name)
            for sink in self._dropped:
                with closing(ClickHouse(sink)) as clickhouse:
                    clickhouse.drop_table(sink.connection_params.database, sink.table)
            Storage.at(self._state_storage).delete_all()
            # The ledger is the last of the roles: until it is deleted, a repeated delete still meets the leases.
            for role in all_roles(self._config.streams, self._config.topology.outs):
                log.delete_stream(self._names.stream(role))
        shutil.rmtree(self._directory, ignore_errors=True)


def _exists(sink: ClickHouseSink) -> bool:
    """Return True if the table of a sink exists: it may have been kept when the pipeline was deleted."""
    with closing(ClickHouse(sink)) as clickhouse:
        return clickhouse.inspect(sink.connection_params.database, sink.table) is not None
