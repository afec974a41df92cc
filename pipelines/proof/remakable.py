"""Which rows can be made anew exactly: of which pipelines, tables and edits. Changes nothing; whatever it lets pass is exact."""

from collections.abc import Iterator, Mapping
from typing import Any

from pipelines.config import PipelineConfig
from pipelines.config.fields import joins
from pipelines.config.sinks import PIPELINE_COLUMN
from pipelines.connectors.clickhouse.client import ClickHouse
from pipelines.connectors.clickhouse.removal import KEEPS_EVERY_ROW, removes_rows
from pipelines.connectors.nats.client import JetStream
from pipelines.connectors.sinks import Table
from pipelines.connectors.sql import statement
from pipelines.errors import NotSupportedError
from pipelines.process.program import Program
from pipelines.proof.made_ranges import differences
from pipelines.proof.verification.span import History, load_configs, read_history
from pipelines.protocol.naming import Names

_WITHOUT = "nothing was changed. Apply the file without --reprocess: the rows so far keep what they have"


def check_edit(config: PipelineConfig, program: Program, log: JetStream) -> None:
    """Raise as `check_ranges` for all that the ledger still knows."""
    names = Names(config.pipeline_id)
    history = read_history(log, names, config.topology, config.sink_leg, None)
    if history.plans:
        check_ranges(history, load_configs(log, names, config.sink_leg, history), program)


def check_ranges(history: History, configs: Mapping[str, Program], program: Program) -> None:
    """Raise NotSupportedError if other records would get a row than those that have one, or if rows have no positions."""
    for first, last, version in history.rows_made(history.plans[0].first, history.last):
        made = configs[version]
        if not differences(made, program):
            continue
        what = f"making the rows of raw {first}..{last} anew"
        if _deciding(made) != _deciding(program):
            raise NotSupportedError(
                f"{what}: they were chosen by another filter, dedup or look-up than the file has, and rows of another choice are not "
                "supported yet; nothing was changed. Put these transforms back as they were and apply the file with --reprocess, then "
                "edit them; or apply it without --reprocess"
            )
        if not {*made.position_columns} >= {"_tf_sequence", "_tf_ordinal"}:
            raise NotSupportedError(f"{what}: without positions they cannot be distinguished, which is not supported; {_WITHOUT}")


def _deciding(program: Program) -> list[dict[str, Any]]:
    """Return the sources, and the steps that only decide which records get a row. What a function drops, it decides by its values."""
    return [{"source": source} for source in program.sources] + [
        step.encode() for step in program.steps if step.drops and not step.archives
    ]


def check_table(config: PipelineConfig, program: Program, table: Table, clickhouse: ClickHouse) -> None:
    """Raise NotSupportedError for a pipeline, or a table, whose rows cannot be made anew exactly. `table`: with the columns of the edit."""
    if reasons := [*_of_pipeline(config, program), *_of_table(program, table, clickhouse)]:
        raise NotSupportedError(f"making rows of {table.full_name} anew is not supported yet where {'; where '.join(reasons)}; {_WITHOUT}")


def _of_pipeline(config: PipelineConfig, program: Program) -> Iterator[str]:
    if joins(config):
        yield "two sources are joined"
    if len(config.by_sink) > 1 or program.tables.routes:
        yield "sinks differ in what they take"
    if program.lookups:
        yield "records are looked up in tables"
    if program.makes_several:
        yield "a function makes several rows of a record"
    if config.sink.rollups:
        yield "rollups keep figures of the rows"


def _of_table(program: Program, table: Table, clickhouse: ClickHouse) -> Iterator[str]:
    if table.engine not in KEEPS_EVERY_ROW:
        yield f"the engine is {table.engine}"
    elif removes := removes_rows(table):
        yield f"{removes} removes rows"
    if not {*program.position_columns} >= {"_tf_sequence", "_tf_ordinal"}:
        yield "the table has no position columns"
    if views := clickhouse.views_on(table.database, table.name):
        yield f"materialized views ({', '.join(view.full_name for view in views)}) would get the rows again"
    names = {"database": table.database, "name": table.name}
    found = clickhouse.rows(f"reading table {table.full_name}", statement("clickhouse/hinders_remaking"), names)
    has_constraints, has_projections = found[0] if found else (False, False)
    if has_constraints:
        yield "a constraint may refuse rows that are deleted already"
    if has_projections:
        yield "the table has projections"
    mapped = {*program.insert_columns, PIPELINE_COLUMN}
    if unmapped := [column.name for column in table.columns if column.name not in mapped and not column.default_kind]:
        yield (
            f"the table has columns that the file does not fill ({', '.join(unmapped)}): their values would be lost, so map them, or drop "
            "them (`--drop-columns` drops those that left the mapping)"
        )


def refilled(program: Program, table: Table) -> list[str]:
    """Return the columns whose DEFAULT is computed again for rows that are made anew."""
    mapped = {*program.insert_columns, PIPELINE_COLUMN}
    return [column.name for column in table.columns if column.default_kind == "DEFAULT" and column.name not in mapped]
