"""A table of dead letters whose mapping was edited: each row is compared with the dead letter under the mapping that it was made with."""

import json
import re
from contextlib import closing
from typing import Any

import pytest
from support.dead_letter_case import LEG, with_dead_letters
from support.pipeline_case import PipelineCase

from pipelines.proof.readers.streams import last_sequence
from pipelines.protocol.bodies import SinkPlan
from pipelines.protocol.ledger import read_chain

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("brief_inserts")]

PLACE = ("position", "place", "String")
THEN = (PLACE, ("code", "why", "String"), ("message", "said", "String"), ("offset", "at", "Int64"))
NOW = (
    PLACE,
    ("stage", "why", "String"),
    ("offset", "at", "Int64"),
    ("attempts", "tries", "Int32"),
    ("value", "record", "Nullable(String)"),
)


def mapped(case: PipelineCase, mapping: tuple[tuple[str, str, str], ...]) -> None:
    entries = [{"name": name, "column_name": column, "column_type": kind} for name, column, kind in mapping]
    case.write_file(with_dead_letters(mapping=entries, order_by=["place"]))


def alter(case: PipelineCase, *changes: str) -> None:
    for change in changes:
        case.client().command(f"ALTER TABLE {case.table}_rejected {change} SETTINGS mutations_sync = 2")


def edited(case: PipelineCase) -> int:
    """Two dead letters under one mapping, and one under the next; return the last sequence of the first two."""
    mapped(case, THEN)
    case.create_topic(1)
    case.send([b"{", None], partitions=1)
    case.warm_run()
    with closing(case.log()) as log:
        to = read_chain(log, case.names, LEG.chain).to
    assert to
    alter(case, "ADD COLUMN tries Int32", "ADD COLUMN record Nullable(String)")
    mapped(case, NOW)
    case.send([b"[]"], partitions=1)
    case.warm_run()
    return to


def verified(case: PipelineCase) -> dict[str, Any]:
    found = case.invoke("verify", str(case.file), "--json")
    report: dict[str, Any] = json.loads(found.stdout)
    return report


def differing(report: dict[str, Any]) -> list[tuple[str, str, int]]:
    return [(one["column"], one["kind"], one["count"]) for one in report["findings"]]


def test_each_row_is_compared_under_the_mapping_that_made_it(case: PipelineCase) -> None:
    edited(case)
    rows = case.client().query(f"SELECT why, said, tries, record FROM {case.table}_rejected ORDER BY at").result_rows
    assert [(why, bool(said), tries, record) for why, said, tries, record in rows] == [
        ("invalid_json", True, 0, None),
        ("tombstone", True, 0, None),
        ("parse", False, 1, "[]"),
    ]
    report = verified(case)
    assert (report["verdict"], report["findings"], report["not_proven"]) == ("clean", [], []), report
    assert not [gap for gap in report["not_compared"] if "values of column" in gap["what"]]
    same = {one["column"] for one in report["checksums"] if one["expected"] == one["found"]}
    assert {f"{name} (rejected)" for name in ("why", "said", "at", "tries", "record")} <= same


def test_a_changed_value_is_named_in_rows_of_each_mapping(case: PipelineCase) -> None:
    edited(case)
    alter(case, "UPDATE why = 'parse' WHERE at = 0", "UPDATE why = 'invalid_json' WHERE at = 2", "UPDATE said = 'x' WHERE at = 1")
    assert differing(verified(case)) == [("why", "different", 2), ("said", "different", 1)]


def test_values_that_the_table_lost_are_not_proven(case: PipelineCase) -> None:
    to = edited(case)
    alter(case, "DROP COLUMN said")
    report = verified(case)
    assert (report["verdict"], report["findings"]) == ("not proven", []), report
    (gap,) = report["not_proven"]
    assert gap["count"] == 2
    assert gap["what"].startswith("the values of column said: neither the table nor the file has it now")
    assert f"; rows of the dead-letter stream 1..{to}" in gap["what"]


def test_behind_a_purge_a_column_mapped_alike_is_compared(case: PipelineCase) -> None:
    to = edited(case)
    with closing(case.log()) as log:
        ledger, chain = case.names.stream("ledger"), case.names.chain(LEG.chain.leg)
        entries = [(one.sequence, LEG.chain.decode(one).body) for one in log.fetch(ledger, chain, 0, last_sequence(log, ledger))]
        last = max(sequence for sequence, body in entries if isinstance(body, SinkPlan))
        log.purge(ledger, chain, last)
    alter(case, "UPDATE at = 7 WHERE at = 0")
    report = verified(case)
    assert differing(report) == [("at", "different", 1)]
    unknown = {re.sub(r".* column (\w+):.*stream (\S+) .*", r"\1 \2", gap["what"]): gap["count"] for gap in report["not_proven"]}
    assert unknown == {f"{name} 1..{to}": 2 for name in ("why", "said", "tries", "record")}
