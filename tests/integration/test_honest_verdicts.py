"""A proof says clean, with the exit code 0, only if every row of the table is explained: rows that nobody has sent, in every place."""

import json
from typing import Any

import pytest
from support.dedup_case import event
from support.pipeline_case import PipelineCase, wait_until

pytestmark = [pytest.mark.integration, pytest.mark.spark]


def proofs(case: PipelineCase) -> dict[str, tuple[int, str, int]]:
    """Exit code, verdict and rows in findings of both proofs."""
    found = {}
    for command in ("audit", "verify"):
        ended = case.invoke(command, str(case.file), "--json")
        assert ended.stdout, ended.stderr
        answer: dict[str, Any] = json.loads(ended.stdout)
        found[command] = ended.exit_code, answer["verdict"], sum(one["count"] for one in answer["findings"])
    return found


def table(case: PipelineCase, position: str = "") -> None:
    """A table of somebody's own; `position`: the type of the position columns, none without one."""
    columns = "".join(f", {name} {position}" for name in ("_tf_sequence", "_tf_ordinal")) if position else ""
    case.client().command(
        f"CREATE TABLE {case.table} (id Int64, name String, amount Nullable(Float64){columns}) ENGINE = MergeTree ORDER BY id "
        "SETTINGS non_replicated_deduplication_window = 100"
    )


@pytest.mark.parametrize("position", ["", "created"])
def test_foreign_rows_before_the_first_record_are_extra(case: PipelineCase, position: str) -> None:
    case.create_topic(1)
    if position != "created":
        table(case, position)
    case.warm_run()
    assert proofs(case) == {"audit": (0, "clean", 0), "verify": (0, "clean", 0)}
    case.client().command(f"INSERT INTO {case.table} (id, name) VALUES (1, 'of nobody'), (2, 'of nobody')")
    # Without a position of their own, the audit counts them as one place.
    assert {name: each[:2] for name, each in proofs(case).items()} == {"audit": (4, "differs"), "verify": (4, "differs")}


@pytest.mark.parametrize("position", ["", "created"])
def test_foreign_rows_beside_ours_are_extra(case: PipelineCase, position: str) -> None:
    case.create_topic(1)
    if position != "created":
        table(case, position)
    case.send([event(number, number) for number in range(20)], partitions=1)
    case.warm_run()
    assert proofs(case) == {"audit": (0, "clean", 0), "verify": (0, "clean", 0)}
    case.client().command(f"INSERT INTO {case.table} (id, name) VALUES (1, 'of nobody'), (2, 'of nobody')")
    # Without a position of their own, the audit counts them as one place.
    assert {name: each[:2] for name, each in proofs(case).items()} == {"audit": (4, "differs"), "verify": (4, "differs")}


def test_rows_before_process_has_begun_are_not_clean(case: PipelineCase) -> None:
    case.create_topic(1)
    table(case)
    case.run_in_turn("ingest")
    case.client().command(f"INSERT INTO {case.table} (id, name) VALUES (1, 'of nobody')")
    assert proofs(case) == {"audit": (3, "not proven", 0), "verify": (3, "not proven", 0)}


def purged(case: PipelineCase) -> None:
    """A pipeline whose first records are purged, by its own retention."""
    case.write_file(lambda document: document.update(resources={"nats": {"stream": {"max_age": "1ms"}}}))
    case.create_topic(1)
    for number in range(4):
        case.send([event(number, key) for key in range(10 * number, 10 * number + 10)], partitions=1)
        case.warm_run()
    log = case.log()
    wait_until(lambda: log.state(case.names.stream("raw")).first_sequence > 2, "a purge")
    log.close()


def test_rows_behind_a_purge_are_clean_if_as_many_as_counted(case: PipelineCase) -> None:
    purged(case)
    assert proofs(case) == {"audit": (0, "clean", 0), "verify": (0, "clean", 0)}


@pytest.mark.parametrize(
    "statement",
    ["INSERT INTO {0} SELECT * FROM {0} WHERE _tf_sequence = 2", "ALTER TABLE {0} DELETE WHERE id = 1 SETTINGS mutations_sync = 1"],
)
def test_too_many_or_few_rows_behind_a_purge_are_not_proven(case: PipelineCase, statement: str) -> None:
    purged(case)
    case.client().command(statement.format(case.table))
    found = proofs(case)
    assert {name: each[:2] for name, each in found.items()} == {"audit": (3, "not proven"), "verify": (3, "not proven")}
