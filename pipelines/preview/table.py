"""The table of a preview, as the mapping describes it: what `create_table` would create. No server is asked."""

from pipelines.config import PipelineConfig
from pipelines.connectors.sinks import Table, TableColumn, declared_columns


def declared_table(config: PipelineConfig) -> Table:
    """Return the table with the columns of the mapping, in their types and without DEFAULTs, and the position columns."""
    described = tuple(TableColumn(name, kind, "") for name, kind in declared_columns(config))
    return Table(config.sink.connection_params.database, config.sink.table, "MergeTree", "", described, 0)
