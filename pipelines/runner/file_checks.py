"""Check of a file what needs no server: the stages and types that this release runs, the code of functions, the Spark master.

Each check raises with one clear message, and changes nothing. A preview makes them, too, so nothing here imports a client of a server.
"""

import os
import re
from pathlib import Path

from pipelines.config import PipelineConfig, unsupported
from pipelines.config.fields import all_passed
from pipelines.config.text import path_text
from pipelines.config.transforms.python import FunctionConfig
from pipelines.errors import ConfigurationError, Fault, NotSupportedError
from pipelines.process.steps import kinds
from pipelines.process.steps.mapping.columns import TargetColumn, check_mapping
from pipelines.types.columns import value_type
from pipelines.types.fields import ParsedField, check_fields

_MASTER = re.compile(r"local(\[[^]]+\])?|local-cluster\[\d+,\d+,\d+\]|spark://[^:/\s]+:\d+(,[^:/\s]+:\d+)*|k8s://\S+|yarn")


def check_file(config: PipelineConfig) -> None:
    """Raise NotSupportedError or ConfigurationError as `check_supported` and `check_types` do."""
    check_supported(config)
    check_types(config)


def check_supported(config: PipelineConfig) -> None:
    """Raise NotSupportedError for a valid file that asks for a stage that this release does not run."""
    missing = unsupported(config)
    if missing:
        raise NotSupportedError(f"pipeline {config.pipeline_id}: not supported yet: {'; '.join(missing)}. Nothing was started")


def check_types(config: PipelineConfig) -> None:
    """Raise ConfigurationError if a mapped field cannot become its column's type."""
    fields_of = [[ParsedField(field.name, field.type) for field in source.schema_fields] for source in config.sources]
    faults = [Fault(f"sources[{index}].schema_fields", fault) for index, fields in enumerate(fields_of) for fault in check_fields(fields)]
    for seen in config.by_sink:
        reached = [ParsedField(name, kind) for name, kind in seen.fields_at_sink.items()]
        targets = [TargetColumn(m.name, m.column_name, value_type(m.column_type), False) for m in seen.sink.mapping]
        faults += [Fault(path_text((*seen.sink_at, "mapping")), fault) for fault in check_mapping(reached, targets)]
    if faults:
        raise ConfigurationError(f"pipeline {config.pipeline_id}", faults)


def check_functions(config: PipelineConfig) -> None:
    """Raise ConfigurationError if the code of a function is missing, cannot be imported, or returns other fields than declared."""
    faults = []
    for passed in all_passed(config):
        if isinstance(passed.transform.config, FunctionConfig):
            try:
                kinds()[passed.transform.type].of_file(passed.transform.config, passed.before, {})
            except ValueError as error:
                faults.append(Fault(f"transforms[{passed.index}].config.function", str(error)))
    if faults:
        raise ConfigurationError(f"pipeline {config.pipeline_id}", faults)


def check_master(config: PipelineConfig, master: str | None, properties: Path | None = None) -> None:
    """Raise ConfigurationError for a Spark master that cannot be, or whose workers would not share the key stores of this host."""
    faults = []
    if master is not None and not _MASTER.fullmatch(master):
        faults.append(Fault("--master", f"{master!r} is no Spark master; name local[N,4], spark://HOST:PORT, k8s://URL or yarn"))
    elif master is not None and not master.startswith("local") and not config.state_uri:
        message = (
            f"--master {master} has workers on other hosts, which cannot read this host's directories: set a URI that all of them reach"
        )
        faults.append(Fault("state_uri", message))
    if properties is not None and not os.access(properties, os.R_OK):
        faults.append(Fault("--spark-conf", f"{properties} cannot be read"))
    if faults:
        raise ConfigurationError(f"pipeline {config.pipeline_id}", faults)
