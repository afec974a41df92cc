"""Two topics into one table: records of both become rows, a copy in the other topic is one, and every proof knows the source."""

import json
from contextlib import closing

import pytest
import yaml
from pyspark.sql import SparkSession
from support.pipeline_case import PipelineCase
from support.union_case import DEDUP, Union

from pipelines.config import parse
from pipelines.errors import HaltError
from pipelines.protocol.tally import tally

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("brief_inserts")]


def test_records_of_two_topics_become_rows_of_one_table(case: PipelineCase, session: SparkSession) -> None:
    case.session = session
    union = Union(case, case.addresses, DEDUP)
    union.send("events", [*range(100), -1])
    case.warm_run()
    union.send("crm", [*range(50, 150), -1, -1])
    case.warm_run()
    union.check({"events": [*range(100), -1], "crm": [*range(50, 150), -1, -1]})
    assert [row for row in union.rows() if row[0] in (99, 100)] == [union.row("events", 99), union.row("crm", 100)]
    verified = json.loads(case.invoke("verify", str(case.file), "--kafka", "--json").stdout)
    assert (verified["verdict"], verified["counts"]["in Kafka"], verified["counts"]["copies"]) == ("clean", 203, 50)
    with closing(case.log()) as log:
        found = tally(log, case.names, parse(case.file.read_text(), name="case", environment=case.environment()).topology)
    assert found.residue == 0
    assert {leg.leg: leg.rows_in for leg in found.of_kind("ingest")} == {"ingest": 101, "ingest:crm": 102}


def test_without_dedup_all_have_rows_and_a_lost_one_is_named(case: PipelineCase) -> None:
    """With the topic of its record."""
    union = Union(case, case.addresses)
    union.send("events", range(30))
    union.send("crm", range(30))
    case.warm_run()
    assert sorted(union.rows()) == sorted(union.row(source, one) for source in ("crm", "events") for one in range(30))
    report = json.loads(case.invoke("verify", str(case.file), "--kafka", "--json").stdout)
    assert (report["verdict"], report["counts"]["rows"]) == ("clean", 60)
    case.client().command(f"ALTER TABLE {case.table} DELETE WHERE name IN ('n3', 'crm n13') SETTINGS mutations_sync = 2")
    for command in ("audit", "verify"):
        (finding,) = json.loads(case.invoke(command, str(case.file), "--json").stdout)["findings"]
        assert (finding["kind"], finding["count"]) == ("missing", 2)
        assert {example["topic"] for example in finding["examples"]} == {*union.topics.values()}


def test_a_dead_letter_enters_again_as_of_its_source(case: PipelineCase) -> None:
    union = Union(case, case.addresses, DEDUP)
    case.warm_run()
    case.client().command(f"ALTER TABLE {case.table} ADD CONSTRAINT small CHECK id < 100")
    union.send("events", [1, 101])
    union.send("crm", [2, 102])
    case.warm_run()
    assert {(letter["source"], letter["stage"]) for letter in case.dead_letters()} == {("events", "sink"), ("crm", "sink")}
    case.client().command(f"ALTER TABLE {case.table} DROP CONSTRAINT small")
    assert case.invoke("dlq", "reprocess", str(case.file), "--all").exit_code == 0
    case.warm_run()
    assert union.rows() == [union.row("events", 1), union.row("crm", 2), union.row("events", 101), union.row("crm", 102)]


def test_why_finds_a_key_of_any_source_which_may_not_change(case: PipelineCase) -> None:
    union = Union(case, case.addresses, DEDUP)
    union.send("crm", [7])
    case.warm_run()
    union.send("events", [7])
    case.warm_run()
    found = json.loads(case.invoke("why", str(case.file), "7", "--json").stdout)
    assert (found["accepted"]["topic"], found["duplicates"]) == (union.topics["crm"], 1)
    written = case.file.read_text()
    for edit in (list.reverse, list.pop):
        document = yaml.safe_load(written)
        edit(document["sources"])
        left = {None, *(source["source_id"] for source in document["sources"])}
        document["transforms"] = [one for one in document["transforms"] if one.get("source_id") in left]
        case.file.write_text(yaml.safe_dump(document))
        with pytest.raises(HaltError, match=r"order of sources was \['events', 'crm'\]"):
            case.warm_run()


def test_sources_filters_behind_dedup_and_sinks_go_together(case: PipelineCase) -> None:
    """Copies of a record that the filter drops are copies; a refused row of either source goes to the fallback."""
    behind = {"type": "filter", "config": {"expression": "id % 5 <> 0"}}
    union = Union(case, case.addresses, DEDUP, behind)
    document = yaml.safe_load(case.file.read_text())
    sink = document.pop("sink")
    document["on_error"] = {"max_rejected_percent": 100}
    document["sinks"] = [
        {**sink, "id": "strict", "on_refused": {"sink": "rest"}},
        {**sink, "id": "late", "when": "id >= 20", "table": f"{case.table}_late"},
        {**sink, "id": "rest", "table": f"{case.table}_rest"},
    ]
    case.file.write_text(yaml.safe_dump(document))
    case.warm_run()
    case.client().command(f"ALTER TABLE {case.table} ADD CONSTRAINT odd CHECK id % 7 != 0")
    union.send("events", range(20))
    case.warm_run()
    union.send("crm", range(10, 30))
    case.warm_run()
    kept = [union.row("events" if one < 20 else "crm", one) for one in range(30) if one % 5]
    late = case.client().query(f"SELECT id, name, amount, topic FROM {case.table}_late ORDER BY id").result_rows
    rest = case.client().query(f"SELECT id, name, amount, topic FROM {case.table}_rest ORDER BY id").result_rows
    assert union.rows() == [row for row in kept if row[0] % 7]
    assert list(late) == [row for row in kept if row[0] >= 20]
    assert list(rest) == [row for row in kept if row[0] % 7 == 0]
    for command in ("audit", "verify"):
        report = json.loads(case.invoke(command, str(case.file), "--json").stdout)
        assert (report["verdict"], report["findings"], report["not_proven"]) == ("clean", [], []), report
