"""docs/pipeline-file.md: the prose of page.md, and a reference of the models. `python -m pipelines.config.docs` writes it."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_origin

from pipelines.config.base import Effect, Model, field_named, models_in
from pipelines.config.effects import ITEM, NAMED, Place, effects, shown
from pipelines.config.pipeline import PipelineConfig
from pipelines.config.schema import model_schema
from pipelines.config.table_model import TableModel
from pipelines.config.transform_model import TransformModel

TARGET = Path("docs/pipeline-file.md")
_PROSE = (Path(__file__).parent / "page.md").read_text(encoding="utf-8")
EXAMPLE = _PROSE.split("```yaml\n")[1].split("```")[0]
"""The small example of the page."""


def _titles(model: type[Model] = PipelineConfig, path: str = "", kind: str = "") -> Iterator[tuple[str, str]]:
    """Yield (model, heading) of every object in a model, in the order of the file. `kind`: of the transform in which it is."""
    for name, field in model.model_fields.items():
        at = f"{path}.{field.alias or name}{'[]' if get_origin(field.annotation) is tuple else ''}".removeprefix(".")
        for inner in models_in(field.annotation):
            own = get_args(inner.model_fields["type"].annotation)[0] if issubclass(inner, TransformModel | TableModel) else ""
            yield inner.__name__, f"{at}: {own}" if own else f"{at} of {kind}" if kind else at
            yield from _titles(inner, at, own or kind)


_RELOADED = """## Fields that take effect without a restart

A running pipeline takes a change of these fields between two batches ([how](changing.md#without-a-restart)); `lanes` only if there are
fewer of them. `name`, `metadata`, `checks` and `alerts` are read by no runner, and hold at once. Any other change needs a start, or more.
"""


def _headings() -> dict[str, str]:
    """Return the heading of each model, in the order of the page."""
    found: dict[str, list[str]] = {}
    for model, title in _titles():
        found.setdefault(model, []).append(title)
    return {model: ", ".join(titles) for model, titles in found.items()}


_TITLES = _headings()


def render() -> str:
    schema = model_schema()
    models = schema["$defs"]
    sections = [_section("The root", schema), *(_section(f"`{title}`", models[name]) for name, title in _TITLES.items() if name in models)]
    contents = " ·\n".join(
        f"[{title}](#{_anchor(title)})" for title in ("The root", *(title for name, title in _TITLES.items() if name in models))
    )
    return "\n".join([_PROSE, _reloaded(), "## Reference\n", contents + "\n", *sections])


def _reloaded() -> str:
    """Return the section on the fields that a running pipeline takes up."""
    rows = [f"| `{shown(place)}` | {_meaning(place)} |" for place, effect in effects().items() if effect == Effect.RELOAD]
    return "\n".join([_RELOADED, "| Field | Meaning |", "|---|---|", *rows, ""])


def _meaning(place: Place) -> str:
    """Return the first sentence of a field's description."""
    models: list[type[Model]] = [PipelineConfig]
    found = ""
    for name in (part for part in place if part not in (ITEM, NAMED)):
        fields = [field for model in models if (field := field_named(model, name)) is not None]
        found, models = str(fields[0].description), [model for field in fields for model in models_in(field.annotation)]
    return " ".join(found.split()).partition(". ")[0].removesuffix(".") + "."


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
    if "x-type" in field:
        return str(field["x-type"])
    if "$ref" in field:
        title = _TITLES[field["$ref"].rpartition("/")[2]]
        return f"[{title}](#{_anchor(title)})"
    if "const" in field:
        return f"`{field['const']}`"
    if "enum" in field:
        return ", ".join(f"`{choice}`" for choice in field["enum"])
    if "anyOf" in field:
        return ", ".join(_type(choice) for choice in field["anyOf"] if choice.get("type") != "null")
    if "oneOf" in field:
        return " or ".join(_type(choice) for choice in field["oneOf"])
    if field.get("type") == "object" and isinstance(field.get("additionalProperties"), dict):
        return f"by name, {_type(field['additionalProperties'])}"
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


def _anchor(title: str) -> str:
    """Return the anchor that GitHub gives a heading."""
    return "".join(character for character in title.lower().replace(" ", "-") if character.isalnum() or character in "-_")


def main() -> None:
    TARGET.write_text(render(), encoding="utf-8")
    sys.stdout.write(f"{TARGET}\n")


if __name__ == "__main__":
    main()
