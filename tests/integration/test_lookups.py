"""Look-ups from Kafka to ClickHouse: each value is that of the snapshot that the record's plan names, and every proof agrees."""

import json
from collections.abc import Mapping
from typing import Any

import pytest
from support.computed_case import with_transforms
from support.pipeline_case import PipelineCase

pytestmark = pytest.mark.integration


def write(case: PipelineCase, table: Mapping[str, Any], **lookup: Any) -> None:
    config = {"table": "names", "key": ["name"], "fields": [{"name": "value", "as": "amount", "type": "float64"}], **lookup}

    def change(document: dict[str, Any]) -> None:
        with_transforms({"type": "lookup", "config": config})(document)
        document["tables"] = {"names": table}

    case.write_file(change)


CSV = {"type": "csv", "uri": "names.csv", "key": "code", "refresh": "1s"}


def save(case: PipelineCase, rows: Mapping[str, float]) -> None:
    path = case.file.with_name("names.csv")
    part = path.with_suffix(".part")
    part.write_text("code,value\n" + "".join(f"{code},{value}\n" for code, value in rows.items()))
    part.rename(path)


def event(number: int, name: str | None) -> bytes:
    return json.dumps({"id": number, "name": name}).encode()


def assert_clean(case: PipelineCase) -> None:
    for command in ("verify", "audit"):
        found = json.loads(case.invoke(command, str(case.file), "--json").stdout)
        assert (found["verdict"], found["findings"], found["not_proven"]) == ("clean", [], []), (command, found)


def test_a_file_beside_the_pipeline_file_gives_the_values(case: PipelineCase, way: None) -> None:
    write(case, CSV)
    save(case, {"a": 1.5, "b": 2.5})
    case.create_topic()
    case.send([event(number, name) for number, name in enumerate("abcab" * 20)])
    case.warm_run()
    found = {name: amount for _, _, name, amount in case.rows()}
    assert found == {"a": 1.5, "b": 2.5, "c": None}
    assert case.count() == 100
    assert_clean(case)
