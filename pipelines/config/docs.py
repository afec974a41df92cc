"""docs/pipeline-file.md, rendered from the models of the pipeline file. `python -m pipelines.config.docs` writes it."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_origin

from pipelines.config.base import Model, models_in
from pipelines.config.pipeline import PipelineConfig
from pipelines.config.schema import model_schema
from pipelines.config.transform_model import TransformModel

TARGET = Path("docs/pipeline-file.md")

EXAMPLE = """\
version: v3
pipeline_id: orders-demo
sources:
  - type: kafka
    topic: orders
    connection_params:
      brokers: ["${KAFKA_BOOTSTRAP:-127.0.0.1:9092}"]
    consumer_group_initial_offset: earliest
    schema_fields:
      - {name: order_id, type: string}
      - {name: customer.city, type: string}
      - {name: price, type: float}
sink:
  type: clickhouse
  connection_params:
    host: ${CLICKHOUSE_HOST:-127.0.0.1}
    port: ${CLICKHOUSE_PORT:-8123}
    database: default
    username: default
    password: ${CLICKHOUSE_PASSWORD:-}
  table: orders
  create_table: true
  order_by: [order_id]
  mapping:
    - {name: order_id, column_name: order_id, column_type: String}
    - {name: customer.city, column_name: city, column_type: LowCardinality(String)}
    - {name: price, column_name: price, column_type: Nullable(Float64)}
"""

_INTRODUCTION = """\
# The pipeline file

One file describes one pipeline, in YAML or JSON. The vocabulary is GlassFlow's pipeline format v3. Fields marked `+` are Tallyflow's own,
and optional.

`tallyflow validate FILE` lists every fault at once, each with its path. `tallyflow schema` prints the JSON Schema for editors.

This page is generated (`python -m pipelines.config.docs`): names, defaults and bounds are those of the program.

## A small example

```yaml
"""

_NOTES = """\
It reads three fields of each order, and makes the table at the first start. [examples/orders](../examples/orders/pipeline.yaml) is a
larger one, with dedup.

## Values

- **Unknown fields are faults**, with the nearest known name, because an ignored typo loses data. A key that is given twice is a fault as
  well. A field that is `null` counts as absent.
- **Durations** are numbers with units, added up: `500ms`, `60s`, `1h30m`, `7d`. Units: `ns us ms s m h d`.
- **Sizes** are bytes, or a number with a unit: `kB MB GB TB` are powers of 1000, `KiB MiB GiB TiB` and `Ki Mi Gi Ti` of 1024.
- **Numbers and flags may be text**: `port: "9000"`, `secure: "true"`. So `${NAME}` works everywhere.

## Environment variables

Inside any text value, but not in field names:

| Write | Get |
|---|---|
| `${NAME}` | the variable; a fault at this path if it is not set |
| `${NAME:-default}` | the variable, or `default` (which may be empty) if it is not set or empty |
| `$${` | the characters `${` |

References are replaced once, after the file is parsed, and only as the text of that one value. What a variable holds cannot add fields,
and is not searched for further references.

## Secrets

Wherever a text is expected, `{file: PATH}` stands for the content of that file, without its last line end:

```yaml
password: {file: /run/secrets/clickhouse}
```

A relative path starts at the working directory. Secrets never appear in messages, logs or the config's own text. A secret that is
written into the file itself works, is masked, and `validate` notes it.

## Differences from GlassFlow

GlassFlow's files are read as they are, with these exceptions.

- Not supported, a fault: `otlp.*` sources, `format` other than `json`, `schema`, other versions, and field names that GlassFlow ignores.
- Accepted, ignored and noted: `schema_registry` and `schema_version` (`schema_fields` describe the JSON), and all of `resources` but
  `nats.stream.max_age` and `max_bytes`, which may also be written `maxAge` and `maxBytes`.
- Tallyflow speaks HTTP to ClickHouse. It uses `http_port`, or `port` without it, which is then not a native port.
- Transforms and joins: their shape is checked here. What this release cannot run is refused at the start ("not supported yet"), never
  ignored.
- Allowed beyond GlassFlow: `Nullable`, `Decimal`, `Date`, `JSON` and the other ClickHouse types, an empty password, a key of several
  fields, several filters and stateless transforms, both with a join, mutual TLS, OAUTHBEARER, and every field marked `+`.
"""


def _titles(model: type[Model] = PipelineConfig, path: str = "", kind: str = "") -> Iterator[tuple[str, str]]:
    """Yield (model, heading) of every object in a model, in the order of the file. `kind`: of the transform in which it is."""
    for name, field in model.model_fields.items():
        at = f"{path}.{name}{'[]' if get_origin(field.annotation) is tuple else ''}".removeprefix(".")
        for inner in models_in(field.annotation):
            own = get_args(inner.model_fields["type"].annotation)[0] if issubclass(inner, TransformModel) else ""
            yield inner.__name__, f"{at}: {own}" if own else f"{at} of {kind}" if kind else at
            yield from _titles(inner, at, own or kind)


_TITLES = {name: ", ".join(title for model, title in _titles() if model == name) for name, _ in _titles()}
"""Heading of each model, in the order of the page."""


def render() -> str:
    """Return the whole page as Markdown."""
    schema = model_schema()
    models = schema["$defs"]
    sections = [_section("The root", schema), *(_section(f"`{title}`", models[name]) for name, title in _TITLES.items())]
    contents = " ·\n".join(f"[{title}](#{_anchor(title)})" for title in ("The root", *_TITLES.values()))
    return "\n".join([_INTRODUCTION + EXAMPLE + "```\n", _NOTES, "## Reference\n", contents + "\n", *sections])


def _section(title: str, model: dict[str, Any]) -> str:
    required = set(model.get("required", ()))
    rows = [_row(name, field, name in required) for name, field in model["properties"].items()]
    table = ["| Field | Type | Default | Meaning |", "|---|---|---|---|", *rows]
    return "\n".join([f"### {title}", "", " ".join(model["description"].split()), "", *table, ""])


def _row(name: str, field: dict[str, Any], required: bool) -> str:
    mark = " +" if field.get("x-ours") else ""
    default = "required" if required else _default(field)
    return f"| `{name}`{mark} | {_type(field)} | {default} | {' '.join(field['description'].split())} |"


def _default(field: dict[str, Any]) -> str:
    value = field.get("default")
    if isinstance(value, dict) or value in (None, "", []):
        return ""
    return f"`{value if isinstance(value, str) else json.dumps(value)}`"


def _type(field: dict[str, Any]) -> str:
    """Describe the type of a field in a few words, from its JSON Schema."""
    if "x-type" in field:
        return str(field["x-type"])
    if "$ref" in field:
        return _link(field["$ref"])
    if "const" in field:
        return f"`{field['const']}`"
    if "enum" in field:
        return ", ".join(f"`{choice}`" for choice in field["enum"])
    if "anyOf" in field:
        return ", ".join(_type(choice) for choice in field["anyOf"] if choice.get("type") != "null")
    if "oneOf" in field:
        return " or ".join(_type(choice) for choice in field["oneOf"])
    if field.get("type") == "array":
        return f"list of {_type(field['items'])}"
    return _scalar(field)


def _scalar(field: dict[str, Any]) -> str:
    low = field.get("minimum")
    if "exclusiveMinimum" in field:
        low = field["exclusiveMinimum"] + 1
    names = {"string": "text", "integer": "whole number", "number": "number", "boolean": "true or false", "object": "object"}
    text = names[field["type"]]
    if low is not None:
        text += f", {low} to {field['maximum']}" if "maximum" in field else f", {low} or more"
    return text


def _link(reference: str) -> str:
    title = _TITLES[reference.rpartition("/")[2]]
    return f"[{title}](#{_anchor(title)})"


def _anchor(title: str) -> str:
    """Return the anchor that GitHub gives a heading."""
    return "".join(character for character in title.lower().replace(" ", "-") if character.isalnum() or character in "-_")


def main() -> None:
    """Write the page to docs/pipeline-file.md under the working directory."""
    TARGET.write_text(render(), encoding="utf-8")
    sys.stdout.write(f"{TARGET}\n")


if __name__ == "__main__":
    main()
