"""What a chain's entries say: each comes back from its JSON as it was, and what is not of the schema is refused with what to do."""

import json
from dataclasses import fields, replace
from typing import Any

import pytest

from pipelines.errors import HaltError, InvariantError
from pipelines.protocol.bodies import (
    CHAINS,
    NEVER,
    Abandoned,
    ClockReset,
    IngestDone,
    IngestPlan,
    InputMark,
    PageReference,
    PlannedPieces,
    ProcessDone,
    ProcessPlan,
    RawTail,
    RedriveDone,
    RedrivePlan,
    ReprocessDone,
    ReprocessPlan,
    SinkDone,
    SinkPlan,
    Waiting,
    Watermarks,
)
from pipelines.protocol.codec import Form, FormError, from_record, from_text, to_record, to_text
from pipelines.protocol.lease import Holder
from pipelines.protocol.ledger import FORMAT, Entry, Open, stored_form
from pipelines.protocol.purge import Purged
from pipelines.protocol.records import Message
from pipelines.testing import FIRST_INSTANT

MARK = InputMark(7, "tf.p.raw.s.0", "2026-01-01T00:00:00+00:00", "ab" * 16)
COUNTS: dict[str, Any] = {"counts": {"rows_in": 3}, "totals": {"rows_in": 9}, "seconds": 0.25}
SNAPSHOTS = {"countries": "ab" * 32, "prices": "0" * 64}
WHOLE: dict[str, list[Any]] = {
    "ingest": [
        IngestPlan(start={"0": 1, "1": 7}, to={"0": 5, "1": 7}, standing=("1",), rest={"1": 9}, is_anchor=True),
        IngestDone(start={"0": 1}, to={"0": 5}, tails={"0": RawTail(4, -1)}, rest={"1": 9}, **COUNTS),
    ],
    "process": [
        ProcessPlan(
            start=3, to=6, config="0123456789abcdef", poison=((5, 1, "parse", "ends"),), lookups=SNAPSHOTS, times=((4, -1, NEVER, 0),)
        ),
        ProcessDone(
            start=3,
            to=6,
            config="v1",
            buckets=64,
            clock_us=5,
            clock_resets=(ClockReset(1, 2, 3, 4),),
            watermarks=Watermarks(1, NEVER, 3, {0: (5, 6)}),
            input=MARK,
            ends={"out": 8, "duplicates": 9},
            runs=PageReference(1, 2, "ab", 3),
            waiting=Waiting(2, 1, -3),
            arrivals=(5, -1, 0),
            lookups=SNAPSHOTS,
            **COUNTS,
        ),
    ],
    "sink": [
        SinkPlan(
            start=3,
            to=6,
            config="v1",
            rows=10,
            digest="ab",
            table="db.t",
            pieces=PlannedPieces(2, (4, 10), ((0, 0), (1, 0)), ("no",), "eJwDAAAAAAE="),
            abandoned=Abandoned("gone", 2, "eJwDAAAAAAE="),
        ),
        SinkDone(start=3, to=6, input=MARK, **COUNTS),
    ],
    "redrive": [
        RedrivePlan(start=1, to=2, action="enter", letters=((7, ((0, 1), (4, 4))),), reason="old", records="c2VjcmV0"),
        RedriveDone(start=1, to=2, **COUNTS),
    ],
    "reprocess": [
        ReprocessPlan(start=1, to=2, first=3, last=6, config="v1", table="db.t", rows=2, positions="eJwDAAAAAAE="),
        ReprocessDone(start=1, to=2, first=3, last=6, config="v1", **COUNTS),
    ],
}
BODIES = [pytest.param(leg, body, id=type(body).__name__) for leg, bodies in WHOLE.items() for body in bodies]


def message(payload: bytes) -> Message:
    return Message("tf.p.ledger.process", 17, FIRST_INSTANT, payload)


def entry_of(body: Any, **other: object) -> Message:
    """An entry with other fields than it should have."""
    return message(json.dumps({**json.loads(Entry(3, body, 2, 0).encode()), **other}).encode())


@pytest.mark.parametrize(("leg", "body"), BODIES)
def test_a_body_comes_back_from_its_entry_as_it_was(leg: str, body: Any) -> None:
    assert CHAINS[leg].decode(message(Entry(3, body, 2, 4).encode())) == Entry(3, body, 2, 4, 17)


def test_the_bodies_above_use_every_field() -> None:
    assert {type(body) for bodies in WHOLE.values() for body in bodies} == {
        form for kind in CHAINS.values() for form in (kind.plan, kind.done)
    }
    for bodies in WHOLE.values():
        for body in bodies:
            assert {*to_record(body)} == {field.name for field in fields(body)}


def test_what_is_at_its_default_takes_no_room() -> None:
    assert to_text(ProcessPlan(start=3, to=6, config="v")) == '{"config":"v","start":3,"to":6}'


MAY_BE: dict[str, list[Any]] = {
    **{name: [None] for name in ("input", "runs", "pieces", "abandoned", "waiting")},
    "seconds": [True, 1.5, 2**63],
    "reason": ["\n"],
    "is_anchor": [True],
}


@pytest.mark.parametrize(("leg", "body"), BODIES)
def test_every_field_is_of_its_type(leg: str, body: Any) -> None:
    for name in to_record(body):
        for wrong in (value for value in (None, [[]], True, 1.5, "\n", 2**63) if value not in MAY_BE.get(name, [])):
            with pytest.raises(HaltError, match="no entry of a ledger"):
                CHAINS[leg].decode(entry_of(body, **{name: wrong}))


@pytest.mark.parametrize(("leg", "body"), BODIES)
def test_a_field_of_a_newer_release_is_refused_with_the_remedy(leg: str, body: Any) -> None:
    with pytest.raises(HaltError, match=r"does not know \(colour\), so a newer release has written it\. Start that release"):
        CHAINS[leg].decode(entry_of(body, colour="red"))


def test_a_field_within_a_field_is_refused_as_well() -> None:
    (_, done) = WHOLE["process"]
    record = to_record(done)
    with pytest.raises(HaltError, match=r"\(watermarks.idle\)"):
        CHAINS["process"].decode(entry_of(done, watermarks={**record["watermarks"], "idle": 1}))


@pytest.mark.parametrize(
    ("found", "reported"),
    [
        (FORMAT + 1, "a newer release has written it .*start the newer release"),
        (FORMAT - 1, "an earlier release .*continue with the earlier release"),
        (None, "earlier"),
    ],
)
def test_an_entry_of_another_format_is_refused_with_what_to_do(found: int | None, reported: str) -> None:
    record = {**json.loads(Entry(3, Open()).encode()), "format": found, "from": 3}
    if found is None:
        del record["format"]
    with pytest.raises(HaltError, match=reported):
        CHAINS["process"].decode(message(json.dumps(record).encode()))


@pytest.mark.parametrize("found", ["2", 2.0, True, 0, -1, []])
def test_a_format_that_is_none_is_foreign(found: object) -> None:
    with pytest.raises(HaltError, match=r"no entry of a ledger .*only Tallyflow may write"):
        CHAINS["process"].decode(entry_of(Open(), format=found))


def test_an_entry_of_another_leg_is_none_of_this_one() -> None:
    with pytest.raises(HaltError, match="reading"):
        CHAINS["process"].decode(message(Entry(3, WHOLE["sink"][0]).encode()))


@pytest.mark.parametrize(
    "pieces", [{"sent": 5, "ends": [5]}, {"sent": 0, "ends": [4, 3]}, {"sent": 2, "refused": [[0, 0]]}], ids=["behind", "back", "no reason"]
)
def test_pieces_that_contradict_themselves_are_foreign(pieces: dict[str, Any]) -> None:
    with pytest.raises(HaltError, match="no entry of a ledger"):
        CHAINS["sink"].decode(entry_of(WHOLE["sink"][0], pieces=pieces))


@pytest.mark.parametrize("table", ["t; DROP TABLE x", "db.t`", "db.t.u", "db."])
def test_a_table_that_is_no_identifier_is_foreign(table: str) -> None:
    with pytest.raises(HaltError, match="no entry of a ledger"):
        CHAINS["sink"].decode(entry_of(WHOLE["sink"][0], table=table))


@pytest.mark.parametrize("config", ["*", ">", "a.b", "a b", "a\n"])
def test_a_version_that_is_no_token_of_a_subject_is_foreign(config: str) -> None:
    with pytest.raises(HaltError, match="no entry of a ledger"):
        CHAINS["process"].decode(entry_of(WHOLE["process"][0], config=config))


def test_nothing_is_written_that_could_not_be_read() -> None:
    with pytest.raises(InvariantError, match=r"writing a ProcessPlan: config: .*nothing was written"):
        Entry(3, replace(WHOLE["process"][0], config="a.b")).encode()


STORED: list[Form] = [Holder(3, "place", "host:7", True, 4), Purged(7, FIRST_INSTANT, True)]


@pytest.mark.parametrize("form", STORED, ids=lambda form: type(form).__name__)
def test_what_stands_beside_the_chains_is_validated_as_well(form: Form) -> None:
    assert stored_form(type(form), message(to_text(form).encode())) == form
    for payload in (b"", b"[]", b"\xff", b"[" * 100_000, to_text(form).replace("7", "-7").replace("3", "-3").encode()):
        with pytest.raises(HaltError, match="only Tallyflow may write"):
            stored_form(type(form), message(payload))


def test_equal_values_have_one_text() -> None:
    one, other = ({"a": 1, "b": 2}, {"b": 2, "a": 1})
    assert to_text(RedriveDone(start=0, to=1, counts=one)) == to_text(RedriveDone(start=0, to=1, counts=other))


def test_a_form_is_read_from_its_own_values_only() -> None:
    assert from_record(Open, {}) == from_text(Open, "{}") == Open()
    for text in ("", "[]", "7", "null", "{"):
        with pytest.raises(FormError):
            from_text(Open, text)
