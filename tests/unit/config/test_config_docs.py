"""docs/pipeline-file.md is what the models say."""

import re
from pathlib import Path

import yaml

from pipelines.config import json_schema, notes, parse, unsupported
from pipelines.config.docs import EXAMPLE, TARGET, render
from pipelines.runner.file_checks import check_types

PAGE = Path(__file__).parents[3] / TARGET


def test_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == render(), "run `python -m pipelines.config.docs`"


def test_example_of_the_page_loads_and_can_run() -> None:
    config = parse(EXAMPLE, name="docs", environment={})
    assert (unsupported(config), notes(config)) == ([], [])
    assert EXAMPLE in render()


def test_every_field_has_a_row_with_a_meaning() -> None:
    schema = json_schema()
    rows = re.findall(r"^\| `([^`]+)`(?: \+)? \| [^|]+ \| [^|]* \| [^|]+ \|$", render(), re.MULTILINE)
    fields = [name for model in (schema, *schema["$defs"].values()) for name in model["properties"]]
    assert sorted(rows) == sorted(fields)


def test_links_lead_to_headings() -> None:
    page = render()
    anchors = {
        "".join(c for c in heading.lower().replace(" ", "-") if c.isalnum() or c in "-_")
        for heading in re.findall(r"^#+ (.*)$", page, re.MULTILINE)
    }
    assert set(re.findall(r"\]\(#([^)]+)\)", page)) <= anchors


def test_the_example_of_columns_is_a_sound_file() -> None:
    part = next(block.split("```")[0] for block in PAGE.read_text(encoding="utf-8").split("```yaml\n")[1:] if "columns:" in block)
    document, whole = yaml.safe_load(part), yaml.safe_load(EXAMPLE)
    whole["sources"][0] |= document["sources"][0]
    whole["sink"] |= document["sink"] | {"order_by": ["order_id"]}
    config = parse(yaml.safe_dump(whole | {"transforms": document["transforms"]}), name="example", environment={})
    assert unsupported(config) == []
    check_types(config)
