"""JSON Schema of the pipeline file, for editors: the content of the file before `${NAME}` is replaced."""

from datetime import timedelta
from typing import Any

from pydantic import TypeAdapter

from pipelines.config.durations import format_duration
from pipelines.config.pipeline import PipelineConfig

_TEXT_FOR = {"string": r"\$\{", "integer": r"\$\{|^[0-9]+$", "boolean": r"\$\{|^(true|false)$"}
"""Patterns of the text that may replace a narrower value: a reference, or the value in quotes."""


def model_schema() -> dict[str, Any]:
    """Return pydantic's schema with our `x-type` (duration, size, secret ...) and `x-ours` (not in GlassFlow's format)."""
    schema = PipelineConfig.model_json_schema(by_alias=True, mode="validation")
    for model in (schema, *schema["$defs"].values()):
        for field in model["properties"].values():
            if "$ref" in field:
                # Pydantic leaves out a description that is the same as that of the object.
                field.setdefault("description", schema["$defs"][field["$ref"].rpartition("/")[2]]["description"])
            if field.get("x-type") == "duration" and "default" in field:
                # Pydantic writes it as ISO 8601, which the file does not know.
                field["default"] = format_duration(TypeAdapter(timedelta).validate_python(field["default"]))
    return schema


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of the file.

    Wherever only some texts or numbers are allowed, `${NAME}` is too.
    """
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "Tallyflow pipeline", **_open(model_schema())}


def _open(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_open(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    opened = {key: _open_part(key, value) for key, value in schema.items() if key != "title" and not key.startswith("x-")}
    if not _is_narrow(opened):
        return opened
    about = {key: opened.pop(key) for key in ("description", "default") if key in opened}
    return {**about, "anyOf": [opened, {"type": "string", "pattern": _TEXT_FOR[opened["type"]]}]}


def _open_part(key: str, value: Any) -> Any:
    # These two are maps of names, not schemas: a field may be called "type" or "title".
    if key in ("properties", "$defs"):
        return {name: _open(item) for name, item in value.items()}
    return value if key == "default" else _open(value)


def _is_narrow(schema: dict[str, Any]) -> bool:
    """Return True if the schema allows only some texts, or numbers or flags.

    A `const` distinguishes kinds of objects and stays.
    """
    kind = schema.get("type")
    if "const" in schema:
        return False
    return kind in ("integer", "boolean") or (kind == "string" and bool(schema.keys() & {"enum", "pattern"}))
