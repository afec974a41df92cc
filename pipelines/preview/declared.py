"""The tables of a preview, as the mappings describe them, and the program for them: those of `create_table`. No server is asked."""

from pipelines.config import PipelineConfig
from pipelines.connectors.sinks import Table, TableColumn, declared_columns
from pipelines.process.compile import compile_program
from pipelines.process.program import Program
from pipelines.runner.file_checks import check_file


def declared_program(config: PipelineConfig) -> Program:
    """Return the program of a pipeline file for its declared tables. Raise ConfigurationError or NotSupportedError as a start would."""
    check_file(config)
    return compile_program(config, [declared_table(seen) for seen in config.by_table])


def declared_table(config: PipelineConfig) -> Table:
    """Return the table with the columns of the mapping, in their types and without DEFAULTs, and the position columns."""
    described = tuple(TableColumn(name, kind, "") for name, kind in declared_columns(config))
    return Table(config.sink.connection_params.database, config.sink.table, "MergeTree", "", described, 0)
