"""A table of dead letters under kills: each dead letter is a row once, whoever wrote it and wherever the runner died."""

import json
from typing import Any

import pytest
from support.pipeline_case import PipelineCase

from pipelines.protocol.failpoints import VARIABLE

pytestmark = [pytest.mark.crash, pytest.mark.usefixtures("brief_inserts")]

LEG = ("--leg", "dead_letters")


def with_dead_letters(document: dict[str, Any]) -> None:
    sink = document.pop("sink")
    letters = {name: value for name, value in sink.items() if name != "mapping"}
    document["on_error"] = {"max_rejected_percent": 100}
    document["sinks"] = [
        {**sink, "id": "every"},
        {**letters, "id": "rejected", "from": "dead_letters", "table": f"{sink['table']}_rejected"},
    ]


def places(case: PipelineCase) -> list[tuple[int, int]]:
    return [*case.client().query(f"SELECT _tf_sequence, _tf_ordinal FROM {case.table}_rejected ORDER BY ALL").result_rows]


@pytest.fixture
def rejecting(case: PipelineCase) -> PipelineCase:
    """A pipeline whose records are broken, every fourth, or refused by the table, every seventh id."""
    case.write_file(with_dead_letters)
    case.create_topic(1)
    case.warm_run()
    case.client().command(f"ALTER TABLE {case.table} ADD CONSTRAINT odd CHECK id % 7 != 0")
    return case


def send(case: PipelineCase, first: int) -> None:
    values = (json.dumps({"id": n, "name": "n", "amount": 1}).encode() if n % 4 else b"{" for n in range(first, first + 40))
    case.send(values, partitions=1)


def check(case: PipelineCase) -> None:
    letters = case.dead_letters()
    found = places(case)
    assert len(found) == len({*found}) == len(letters)
    stored = case.client().query(f"SELECT topic, partition, offset, stage, code FROM {case.table}_rejected").result_rows
    wanted = [(one["_tf_topic"], one["_tf_partition"], one["_tf_offset"], one["stage"], one["code"]) for one in letters]
    assert sorted(stored) == sorted(wanted)
    for command in ("audit", "verify"):
        report = json.loads(case.invoke(command, str(case.file), "--json").stdout)
        assert (report["verdict"], report["findings"]) == ("clean", []), report


@pytest.mark.parametrize("point", ["leg.after-plan:1", "sink.before-insert:1", "sink.after-insert:1", "leg.before-commit:1"])
def test_a_kill_of_its_leg_doubles_and_loses_no_dead_letter(rejecting: PipelineCase, point: str) -> None:
    case = rejecting
    for first in (0, 40):
        send(case, first)
        case.warm_run(legs=("ingest", "process", "sink"))
        assert run_leg(case, point) == -9
    case.warm_run()
    assert len(places(case)) > 20
    check(case)


def run_leg(case: PipelineCase, point: str) -> int:
    process = case.start_plain("--until-caught-up", *LEG, **{VARIABLE: point})
    process.communicate(timeout=240)
    return int(process.returncode)


@pytest.mark.parametrize(
    "points", [("process.after-publish:1", "sink.after-insert:2", "sink.after-insert:3"), ("sink.after-amend:1", "leg.before-commit:3")]
)
def test_a_kill_of_the_runner_doubles_and_loses_no_dead_letter(rejecting: PipelineCase, points: tuple[str, ...]) -> None:
    case = rejecting
    for number, point in enumerate(points):
        send(case, 40 * number)
        assert case.run_plain(**{VARIABLE: point}).returncode == -9, point
    case.warm_run()
    check(case)
