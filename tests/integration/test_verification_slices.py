"""A verification in slices, as Spark tasks: the same verdict as of one run, sound tables and planted faults."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import nats
import pytest
from pyspark.sql import SparkSession
from support.dedup_case import event, keyed_by, timed_by
from support.pipeline_case import PipelineCase

from pipelines.config import parse
from pipelines.engine.execute import batch_tasks
from pipelines.engine.run_spec import RunSpec
from pipelines.proof.verification.result import Verification
from pipelines.proof.verification.run import Request, Verifier, verify
from pipelines.proof.verification.slices import slices_between, verify_in_tasks, verify_slices

pytestmark = [pytest.mark.integration, pytest.mark.spark]


class Sliced:
    """Verifications of a case, as one run and in slices."""

    def __init__(self, case: PipelineCase, session: SparkSession) -> None:
        self._case = case
        text = case.file.read_text()
        self._config = parse(text, name="case", environment=case.environment())
        self._tasks = batch_tasks(session, RunSpec.beside(text, self._config), {})
        self.reported: list[str] = []

    def whole(self, **options: Any) -> dict[str, Any]:
        log = self._case.log()
        found = verify(self._config, log, self._request(options))
        log.close()
        return in_order(found)

    def as_worth(self, **options: Any) -> dict[str, Any]:
        """In as many slices as the product itself makes."""
        log = self._case.log()
        found = verify_in_tasks(self._config, log, self._request(options), self._tasks, self.reported.append)
        log.close()
        return in_order(found)

    def between(self, borders: Sequence[datetime], **options: Any) -> dict[str, Any]:
        log, request = self._case.log(), self._request(options)
        verifier = Verifier(self._config, log, request)
        subject = verifier.subject()
        assert subject is not None
        found = verify_slices(verifier, subject, request, slices_between(request, borders), self._tasks)
        log.close()
        return in_order(found)

    def _request(self, options: dict[str, Any]) -> Request:
        return replace(Request(self._case.home), **options)


def in_order(found: Verification) -> dict[str, Any]:
    plain = found.plain()
    plain["findings"].sort(key=lambda one: (one["place"], one["kind"], one["column"] or "", one["count"]))
    return plain


def arrival_of(case: PipelineCase, where: str) -> datetime:
    """Of the first row that fits."""
    ((found,),) = case.client().query(f"SELECT min(_tf_arrival) FROM {case.table} WHERE {where}").result_rows
    return found.replace(tzinfo=found.tzinfo or UTC)


def prepared(case: PipelineCase) -> list[datetime]:
    """Four runs over keys of which each has rows in the first run and copies in all others, and some new ones; the arrivals of these."""
    case.write_file(keyed_by("id"))
    case.create_topic(partitions=1)
    for number in range(4):
        case.send([b"{", *(event(number, key) for key in range(50 + number))], partitions=1)
        case.warm_run()
    return [arrival_of(case, f"id = {key}") for key in (50, 51, 52)]


def test_slices_of_a_sound_table_find_what_the_whole_finds(case: PipelineCase, session: SparkSession) -> None:
    borders = prepared(case)
    sliced = Sliced(case, session)
    found = sliced.between(borders, with_kafka=True)
    assert found == sliced.whole(with_kafka=True)
    assert found["verdict"] == "clean"
    assert found["counts"] == {"records": 210, "rows": 53, "copies": 153, "rejected": 4, "refused": 0, "found": 53, "in Kafka": 210}
    within = {"since": borders[0], "until": borders[2]}
    assert sliced.between(borders[1:2], **within) == sliced.whole(**within)
    assert sliced.as_worth(with_kafka=True) == found
    assert "verifying here: the range is not worth cutting" in sliced.reported, "the window is as long as the range"


def test_faults_of_one_slice_are_named_as_the_whole_names_them(case: PipelineCase, session: SparkSession) -> None:
    """The key 51 came in the third run first, its only copy in the fourth."""
    borders = prepared(case)
    client, sliced = case.client(), Sliced(case, session)
    client.command(f"ALTER TABLE {case.table} UPDATE name = 'wrong' WHERE id = 52 SETTINGS mutations_sync = 1")
    client.command(f"DELETE FROM {case.table} WHERE id = 51")
    client.command(f"INSERT INTO {case.table} SELECT * FROM {case.table} WHERE id = 50")
    client.command(f"INSERT INTO {case.table} SELECT * REPLACE (_tf_ordinal + 1 AS _tf_ordinal) FROM {case.table} WHERE id = 52")
    client.command(f"INSERT INTO {case.table} (id, name) VALUES (-2, 'stranger')")
    found = sliced.between(borders)
    assert found == sliced.whole()
    named = {(one["kind"], one["column"]): [example.get("offset") for example in one["examples"]] for one in found["findings"]}
    assert named["missing", None] == [51 + 52 + 1 + 51]
    assert named["doubled", None] == [51 + 1 + 50]
    assert [one["count"] for one in found["findings"] if one["kind"] in ("missing", "doubled")] == [1, 1]
    assert [one["count"] for one in found["findings"] if one["kind"] == "extra"] == [1, 1]
    assert found["verdict"] == "differs"


def test_a_copy_of_a_row_missing_in_an_earlier_slice_is_no_fault(case: PipelineCase, session: SparkSession) -> None:
    """The window, by event time, reaches back over the border, and not to the first frame: the slice believes the rows before it."""
    run_timed(case)
    sliced = Sliced(case, session)
    border = arrival_of(case, "_tf_sequence = 5")
    ((rows,),) = case.client().query(f"SELECT count() FROM {case.table} WHERE _tf_sequence = 4").result_rows
    case.client().command(f"DELETE FROM {case.table} WHERE _tf_sequence = 4")
    alone = sliced.whole(since=border)
    assert {one["kind"] for one in alone["findings"]} == {"missing"}, "copies that seem to be first ones"
    found = sliced.between([border])
    assert found == sliced.whole()
    assert [(one["kind"], one["count"]) for one in found["findings"]] == [("missing", rows)]
    assert {example["position"].split(".")[0] for example in found["findings"][0]["examples"]} == {"4"}


def test_a_raw_frame_that_is_gone_is_told_once(case: PipelineCase, session: SparkSession) -> None:
    borders = prepared(case)

    async def delete() -> None:
        client = await nats.connect(case.addresses.nats_url)
        await client.jetstream().delete_msg(case.names.stream("raw"), 2)
        await client.close()

    asyncio.run(delete())
    sliced = Sliced(case, session)
    found = sliced.between(borders)
    assert found == sliced.whole()
    assert [one["count"] for one in found["findings"] if one["place"] == "streams"] == [1]


def run_timed(case: PipelineCase) -> None:
    """Eight runs over 30 s of event time each; sequence 1 is a frame without a record."""
    case.write_file(timed_by("at", "id", "10s", "5s"))
    case.create_topic(partitions=1)
    for first in range(0, 240, 30):
        records = [{"id": n % 7, "name": "x", "at": 1_780_000_000 + n - n % 3 * 6} for n in range(first, first + 30)]
        case.send([json.dumps(record).encode() for record in records], 1)
        case.warm_run()


def test_a_range_is_cut_where_windows_are_short(case: PipelineCase, session: SparkSession) -> None:
    run_timed(case)
    sliced = Sliced(case, session)
    found = sliced.as_worth()
    assert sliced.reported == ["reading the ledger", f"verifying {session.sparkContext.defaultParallelism} slices as Spark tasks"]
    assert found == sliced.whole()
    assert (found["verdict"] == "clean", min(found["counts"]["copies"], found["counts"]["rejected"]) > 0) == (True, True)
    case.client().command(f"DELETE FROM {case.table} WHERE _tf_sequence = 4")
    assert sliced.as_worth() == sliced.whole()
