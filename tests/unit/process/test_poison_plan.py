"""Records that a stage ends on: what the stages make of a batch with some, and how a plan decides about them."""

from dataclasses import fields, replace
from datetime import UTC, datetime
from threading import Event
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from support.programs import program
from tenacity import wait_none

from pipelines.engine.failures import from_failure, to_failure
from pipelines.engine.leg import LegMeans
from pipelines.errors import FunctionHaltError, HaltError, UndecidedError
from pipelines.process import isolation
from pipelines.process import leg as process
from pipelines.process.arrivals import Arrived
from pipelines.process.giving_up import given_up
from pipelines.process.isolation import INTERNAL_ERROR
from pipelines.process.leg import ProcessLeg
from pipelines.process.program import Program
from pipelines.process.run import run
from pipelines.process.steps import Context, Step
from pipelines.process.steps.dedup import Dedup
from pipelines.protocol.bodies import PROCESS_CHAIN, ProcessDone, ProcessPlan
from pipelines.protocol.ledger import Chain, read_chain
from pipelines.protocol.naming import Names
from pipelines.protocol.records import HEADER_LAST, HEADER_PARTITION, HEADER_ROWS, HEADER_TOPIC, Message, StageOutput, encode_frame
from pipelines.protocol.topology import LegId, Topology
from pipelines.testing import MemoryLog, records
from pipelines.types.duckdb import open_engine
from tests.support.programs import of_steps

NAMES = Names("p")
FIELDS, MAPPING = (("id", "int64"),), (("id", "id", "Int64", False),)
POISON = [5, 1, 0, "parse", "parse ends with KeyError on this record alone"]


def configuration(key: tuple[str, ...] = ()) -> Program:
    return program(FIELDS, MAPPING, *([Dedup(key, 10**12)] if key else []), buckets=2)


def ending(kind: type[Step]) -> type[Step]:
    """The kind of step, but it ends over the record at ordinal 13, whatever stands beside it."""

    class Ending(kind):  # type: ignore[misc, valid-type]
        def apply(self, context: Context, rows: pa.Table) -> StageOutput:
            if 13 in rows.column("_tf_ordinal").to_pylist():
                raise ZeroDivisionError("a value of the row")
            return super().apply(context, rows)

    return Ending


def frame(sequence: int, *ids: int) -> Arrived:
    payload = encode_frame(records(0, [b'{"id": %d}' % number for number in ids]))
    headers = {HEADER_TOPIC: "orders", HEADER_PARTITION: "0"}
    return Arrived(Message("tf.p.raw.orders.0", sequence, datetime(2026, 1, 1, tzinfo=UTC), payload, headers), 0)


@pytest.mark.parametrize("place", range(3))
def test_a_batch_goes_on_without_its_poison_records(place: int) -> None:
    whole = configuration(("id",))
    steps = list(whole.steps)
    steps[place] = ending(type(steps[place]))(**{one.name: getattr(steps[place], one.name) for one in fields(steps[place])})
    with open_engine() as engine:
        made = run(of_steps(steps), engine, [frame(5, *range(40)), frame(6, 90, 91)])
    rows, dead_letters, counts = made.rows, made.dead_letters, made.counts
    assert rows.column("id").to_pylist() == [*range(13), *range(14, 40), 90, 91]
    (dead_letter,) = dead_letters.to_pylist()
    assert (dead_letter["_tf_sequence"], dead_letter["_tf_ordinal"], dead_letter["value"], dead_letter["code"]) == (
        5,
        13,
        b'{"id": 13}',
        INTERNAL_ERROR,
    )
    assert dead_letter["stage"] == ("parse", "dedup", "transform")[place]
    assert "ZeroDivisionError" in dead_letter["message"] and "value of the row" not in dead_letter["message"]
    assert (counts["rows_in"], counts["rows_rejected"]) == (42, 1)
    assert isolation.undecided(dead_letters, []) == [[5, 13, 0, dead_letter["stage"], dead_letter["message"]]]
    assert isolation.undecided(dead_letters, [[5, 13, "parse", "words"]]) == []


def test_a_decided_record_is_a_letter_even_when_it_would_pass() -> None:
    with open_engine() as engine:
        made = run(configuration(), engine, [frame(5, 1, 2)], [[5, 0, "parse", "words"]])
    assert made.rows.column("id").to_pylist() == [2]
    assert [(dead_letter["value"], dead_letter["code"], dead_letter["message"]) for dead_letter in made.dead_letters.to_pylist()] == [
        (b'{"id": 1}', INTERNAL_ERROR, "words")
    ]


@pytest.mark.parametrize("code", [[], ["python_died"]])
def test_what_a_task_finds_reaches_the_driver_whole(code: list[str]) -> None:
    hangs = from_failure(to_failure(FunctionHaltError("own:f hangs", "pyspark")))
    assert (type(hangs), str(hangs), getattr(hangs, "stage", None)) == (FunctionHaltError, "own:f hangs", "pyspark")
    revived = from_failure(to_failure(UndecidedError("one record", [[*POISON, *code]])))
    assert isinstance(revived, UndecidedError)
    assert (str(revived), revived.records, revived.is_unwritten) == ("one record", [[*POISON, *code]], False)
    behind = from_failure(to_failure(UndecidedError("one record", [POISON], is_unwritten=True)))
    assert isinstance(behind, UndecidedError) and behind.is_unwritten


@pytest.mark.parametrize(("key", "given"), [((), [(5, 2, 1), (6, 0, 2)]), (("id",), [(4, 0, 3), (5, 0, 3), (6, 0, 2)])])
def test_a_plan_gives_up_what_is_not_written_yet(key: tuple[str, ...], given: list[tuple[int, int, int]]) -> None:
    """Of frames of one partition, the rows of one bucket; with dedup nothing is written before all records have passed."""
    log = MemoryLog()
    log.publish(NAMES.out(0), b"", {HEADER_LAST: "5.1.0"}, 0)
    connections: Any = SimpleNamespace(names=NAMES, log=log, config=SimpleNamespace(topology=Topology.of(["orders"], [""])))
    messages = [frame(4, 1, 2, 3).message, frame(5, 1, 2, 3).message, frame(6, 1, 2).message]
    counted = [replace(one, headers={**one.headers, HEADER_ROWS: str(rows)}) for one, rows in zip(messages, (3, 3, 2), strict=True)]
    error = FunctionHaltError("calling function own:f: it hangs. Start again", "python")
    found = given_up(connections, configuration(key), counted, [], error)
    assert [(place[0], place[1], place[6]) for place in found] == given
    assert found[0][2:6] == [0, "python", "given up with --accept, without a call: calling function own:f: it hangs", "python_timeout"]
    decided = [(sequence, ordinal, *reason) for sequence, ordinal, _, *reason in found]
    assert given_up(connections, configuration(key), counted, decided, error) == []


def leg_with_plan(log: MemoryLog, key: tuple[str, ...] = ()) -> ProcessLeg:
    """A leg whose open plan covers raw frames 4 to 6, and which has found POISON in it."""
    chain = Chain(log, NAMES, PROCESS_CHAIN, 1)
    chain.open()
    chain.plan(ProcessPlan(start=3, to=6, config="v1"))
    config = SimpleNamespace(topology=Topology.of(["orders"], [""]), sink_leg=LegId("sink"))
    connections = SimpleNamespace(names=NAMES, log=log, config=config, keep=lambda _, make: configuration(key))
    made = ProcessLeg(connections, chain, SimpleNamespace(lost=Event()), Event(), LegMeans(pause=wait_none()))
    made._undecided = [POISON]
    return made


def decide(made: ProcessLeg) -> Any:
    assert made.chain.state.plan is not None
    return made._decide(made.chain.state.plan.body)


@pytest.mark.parametrize("last", [None, "4.9.0", "5.0.0"])
def test_a_record_with_nothing_behind_it_is_decided_in_the_plan(last: str | None) -> None:
    log = MemoryLog()
    if last:
        log.publish(NAMES.out(0), b"", {HEADER_LAST: last}, 0)
    decide(leg_with_plan(log))
    plan = read_chain(log, NAMES, PROCESS_CHAIN).plan
    assert plan is not None
    assert plan.body == ProcessPlan(start=3, to=6, config="v1", poison=((5, 1, "parse", POISON[4]),))


@pytest.mark.parametrize("subject", [NAMES.out(0), NAMES.dead_letters("process", 0)])
@pytest.mark.parametrize(("last", "key"), [("5.1.0", ()), ("6.0.0", ()), ("4.0.0", ("id",))])
def test_a_record_passed_by_an_earlier_attempt_stays_passed(subject: str, last: str, key: tuple[str, ...]) -> None:
    """With dedup whatever was written of the plan was written after all its records had been through the stages."""
    log = MemoryLog()
    log.publish(subject, b"", {HEADER_LAST: last}, 0)
    made = leg_with_plan(log, key)
    with pytest.raises(HaltError, match=r"\(raw position 5\.1\), and an earlier attempt has passed it"):
        decide(made)
    assert made.chain.state.plan is not None and not made.chain.state.plan.body.poison


def test_a_decision_of_unknown_outcome_is_appended_again(monkeypatch: pytest.MonkeyPatch) -> None:
    log = MemoryLog()
    made, attempts = leg_with_plan(log), []

    def execute(plan: ProcessPlan) -> ProcessDone:
        attempts.append(plan.poison)
        return ProcessDone(start=plan.start, to=plan.to, config=plan.config)

    monkeypatch.setattr(made, "_execute", execute)
    log.go_away(1)
    assert made.chain.state.plan is not None
    plan = made.chain.state.plan
    made.patiently(lambda: made.execute(plan))
    assert attempts == [((5, 1, "parse", POISON[4]),)]
    assert made._undecided == []


def test_more_poison_than_a_plan_has_room_for_halts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "MAX_POISON", 0)
    with pytest.raises(HaltError, match="the stages end on more than 0 records"):
        decide(leg_with_plan(MemoryLog()))
