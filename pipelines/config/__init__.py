"""The pipeline file: GlassFlow's pipeline format v3 with optional fields of ours, as one frozen tree of models.

The single source of truth for defaults, bounds and the rules between fields; docs/pipeline-file.md and the JSON Schema derive from it.

    text.py         YAML or JSON to a tree             interpolate.py  ${NAME} and {file: PATH} in the tree
    base.py         what the models share              durations.py    "1h30m" and "512MiB"
    sources/ transforms/ sinks/ on_error.py checks.py alerts.py pipeline.py      the models, in the order of the file
    rules.py        rules between sections             partial.py      the sound part of a faulty file, for the rules
    faults.py       pydantic's errors in plain words   load.py         all of that, from text to PipelineConfig
    analysis.py     notes, version, shape, what this release cannot run
    codes.py        the code of functions beside the file
    schema.py       JSON Schema of the file
"""

from pipelines.config.alerts import Alerts
from pipelines.config.analysis import OTHER_SHAPE, document_of, notes, run_digest, shape_of, unsupported, version_of
from pipelines.config.checks import Check, Checks
from pipelines.config.codes import codes_of, pin_codes
from pipelines.config.durations import format_duration, parse_duration, parse_size
from pipelines.config.load import load, parse
from pipelines.config.on_error import OnError
from pipelines.config.pipeline import NatsConnection, PipelineConfig
from pipelines.config.schema import json_schema
from pipelines.config.sinks import ClickHouseConnection, ClickHouseSink
from pipelines.config.sources import KafkaConnection, KafkaSource
from pipelines.config.transforms import DedupConfig

__all__ = [
    "OTHER_SHAPE",
    "Alerts",
    "Check",
    "Checks",
    "ClickHouseConnection",
    "ClickHouseSink",
    "DedupConfig",
    "KafkaConnection",
    "KafkaSource",
    "NatsConnection",
    "OnError",
    "PipelineConfig",
    "codes_of",
    "document_of",
    "format_duration",
    "json_schema",
    "load",
    "notes",
    "parse",
    "parse_duration",
    "parse_size",
    "pin_codes",
    "run_digest",
    "shape_of",
    "unsupported",
    "version_of",
]
