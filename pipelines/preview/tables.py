"""Snapshots of look-up tables for records that are only tried: rows that a case gives, or the table as a file or a server has it now."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import pyarrow as pa

from pipelines.config import PipelineConfig
from pipelines.config.table_model import FileTable
from pipelines.connectors.tables import fetch
from pipelines.errors import ConfigurationError, Fault
from pipelines.lookups.snapshot import Snapshot, snapshot_of
from pipelines.lookups.spec import TableSpec
from pipelines.process.program import Program
from pipelines.types.duckdb import open_engine

GivenRows = Sequence[Mapping[str, Any]]


def with_tables(
    program: Program, config: PipelineConfig, given: Mapping[str, GivenRows] | None = None, *, offline: bool = False
) -> Program:
    """Return a program with a snapshot of every table that it looks up in. `offline`: no server is asked.

    Raise ConfigurationError for rows that fit no snapshot, or, offline, for a table that is neither given nor a file of this host, and as
    `connectors.tables.fetch` for the others.
    """
    found: dict[str, Snapshot] = {}
    faults = []
    for name, spec in program.lookups.items():
        table = config.tables[name]
        if given is not None and name in given:
            try:
                found[name] = _of_rows(spec, given[name])
            except (ValueError, TypeError) as error:
                faults.append(Fault(f"tables.{name}", str(error)))
        elif offline and not (isinstance(table, FileTable) and table.is_local):
            faults.append(
                Fault(f"tables.{name}", "no server is asked here: give the rows of the table under `tables` in the file of cases")
            )
        else:
            found[name] = Snapshot(spec, fetch(name, table, spec))
    if faults:
        raise ConfigurationError(f"pipeline {config.pipeline_id}", faults)
    return program.with_snapshots({name: partial(found.__getitem__, name) for name in found}) if found else program


def _of_rows(spec: TableSpec, rows: GivenRows) -> Snapshot:
    given = {name for row in rows for name in row}
    if rows and (absent := [name for name in spec.names if name not in given]):
        raise ValueError(f"no row has the column {absent[0]!r}, which a look-up reads; the rows have {', '.join(sorted(given))}")
    columns = {name: pa.array([row.get(name) for row in rows]) for name in spec.names}
    with open_engine() as engine:
        return Snapshot(spec, snapshot_of(spec, pa.table(columns), engine))
