"""Orders joined with customers, for previews: no server is asked, and a test changes what it tries."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from pipelines.config import PipelineConfig, parse
from pipelines.preview.declared import declared_program
from pipelines.process.program import Program

_PIPELINE = """
version: v3
pipeline_id: customers
sources:
  - type: kafka
    source_id: orders
    topic: orders
    connection_params: {brokers: ["localhost:9092"]}
    schema_fields: [{name: order_id, type: string}, {name: customer.id, type: int}, {name: total, type: string}, {name: at, type: string}]
  - type: kafka
    source_id: customers
    topic: customers
    connection_params: {brokers: ["localhost:9092"]}
    schema_fields: [{name: id, type: int32}, {name: name, type: string}, {name: is_test, type: bool}, {name: at, type: string}]
join:
  enabled: true
  left_source: {source_id: orders, key: customer.id, time_window: 10m}
  right_source: {source_id: customers, key: id, time_window: 24h}
  output_fields:
    - {source_id: orders, name: order_id}
    - {source_id: orders, name: total}
    - {source_id: customers, name: name}
sink:
  type: clickhouse
  connection_params: {host: localhost, port: "8123", username: default, password: ""}
  table: orders
  create_table: true
  mapping:
    - {name: order_id, column_name: order_id, column_type: String}
    - {name: total, column_name: total, column_type: "Decimal(10, 2)"}
    - {name: greeting, column_name: greeting, column_type: "Nullable(String)"}
"""
NO_TESTS = {"type": "filter", "source_id": "customers", "config": {"expression": "NOT is_test", "language": "sql"}}
GREETING = {"type": "compute", "config": {"fields": [{"name": "greeting", "expression": "'Dear ' || name"}]}}
BY_TIME = {"time": "event", "allowed_lateness": "10s", "left_source": {"time_field": "at"}, "right_source": {"time_field": "at"}}


def joined_orders(
    join: Mapping[str, Any] | None = None, transforms: Sequence[Mapping[str, Any]] = (NO_TESTS, GREETING)
) -> tuple[PipelineConfig, Program]:
    """The file and its program. `join`: what its join has otherwise; of a side only the fields that are given."""
    document = yaml.safe_load(_PIPELINE)
    for name, value in (join or {}).items():
        document["join"][name] = document["join"][name] | value if isinstance(value, dict) else value
    document["transforms"] = list(transforms)
    config = parse(json.dumps(document), name="customers", environment={}, offline=True)
    return config, declared_program(config)
