"""The audit's verdict against the same question in SQL."""

from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.engines import fresh_database

from pipelines.proof.audit.account import DOUBLED, EXTRA, MISSING, Account, Limits, Offsets, RawFrames, Tallied, compare, dead_letter_faults
from pipelines.proof.audit.report import AuditReport
from pipelines.protocol.positions import packed, position_keys, unpacked

Spot = tuple[int, int]
FRAMES = {2: 3, 3: 0, 5: 2, 6: 1}
SPOTS = [(sequence, ordinal) for sequence, rows in FRAMES.items() for ordinal in range(rows)]
ANYWHERE = st.tuples(st.integers(0, 9), st.integers(0, 3))
PLACES = ("out", "letters", "duplicates", "then_dropped", "refused", "entered", "rows")


def codes(spots: list[Spot]) -> Any:
    sequences, ordinals = zip(*spots, strict=True) if spots else ((), ())
    return packed(np.array(sequences, dtype=np.int64), np.array(ordinals, dtype=np.int64))


def account(confirmed_to: int = 9, **places: list[Spot]) -> Account:
    raw = RawFrames(np.array(list(FRAMES)), np.array(list(FRAMES.values())))
    held = {name: Tallied(raw) for name in (*PLACES, "confirmed")}
    for name in PLACES:
        held[name].add(codes(places.get(name, [])))
    held["confirmed"].add(codes([spot for spot in places.get("out", []) if spot[0] <= confirmed_to]))
    order = ("out", "confirmed", "letters", "duplicates", "then_dropped", "refused", "entered", "rows")
    return Account(raw, *(held[name] for name in order))


def test_ranges_are_told_with_both_ends_and_an_empty_one_as_such() -> None:
    found = AuditReport("orders", ranges={"Kafka offsets in raw": {"t/0": [60, 99], "t/1": [5, 4]}, "raw sequences in out": [1, 7]})
    assert [line for line in found.lines() if line.startswith("compared")] == [
        "compared: Kafka offsets in raw: t/0 60..99, t/1 none",
        "compared: raw sequences in out: 1..7",
    ]


ALL = Limits(floor=0, process_to=6, read_to=6, newest=6)


def faults(found: Account, limits: Limits = ALL) -> dict[tuple[str, str], list[Spot]]:
    all_faults = [*compare(found, limits), *dead_letter_faults([found], limits)]
    return {(fault.hop, fault.kind): [unpacked(code) for code in fault.codes] for fault in all_faults if len(fault.codes)}


def test_positions_are_encoded_as_the_streams_do() -> None:
    table = pa.table({"_tf_sequence": pa.array([7, 1 << 40], pa.uint64()), "_tf_ordinal": pa.array([3, 0], pa.uint32())})
    assert position_keys(table).tolist() == codes([(7, 3), (1 << 40, 0)]).tolist()


def test_every_record_in_one_place_is_clean() -> None:
    clean = account(out=SPOTS[:3], rows=SPOTS[:2], refused=SPOTS[2:3], letters=SPOTS[3:5], duplicates=SPOTS[5:])
    assert faults(clean) == {}
    assert clean.describe(int(codes(SPOTS[2:3])[0])) == "out 1, dead letters of the sink 1"


def test_each_fault_is_named_by_its_position() -> None:
    found = account(out=[(2, 0), (2, 1), (2, 1), (2, 2), (9, 0)], rows=[(2, 1), (2, 2), (2, 2), (6, 0), (0, 0)], letters=[(6, 0)])
    assert faults(found) == {
        ("raw -> out", MISSING): [(5, 0), (5, 1)],
        ("raw -> out", DOUBLED): [(2, 1)],
        ("raw -> out", EXTRA): [(9, 0)],
        ("out -> table", MISSING): [(2, 0)],
        ("out -> table", DOUBLED): [(2, 2)],
        ("out -> table", EXTRA): [(0, 0), (6, 0)],
    }
    assert found.describe(int(codes([(9, 0)])[0])) == "no raw record, out 1"
    assert found.describe(int(codes([(5, 0)])[0])) == "nowhere"


def test_what_is_on_out_is_known_by_raw_frame() -> None:
    found = account(out=[(2, 1), (5, 0), (5, 0), (6, 0)])
    assert [unpacked(code) for code in found.accepted(2, 5)] == [(2, 1), (5, 0)]
    assert [unpacked(code) for code in found.accepted(6, 9)] == [(6, 0)]


def test_what_the_legs_have_not_confirmed_may_be_there_or_not() -> None:
    limits = Limits(floor=0, process_to=2, read_to=6, newest=8)
    found = account(confirmed_to=0, out=[(2, 0), (2, 1), (2, 2), (5, 0)], rows=[(2, 0), (8, 0), (9, 0)])
    assert faults(found, limits) == {("out -> table", EXTRA): [(9, 0)]}


def test_what_may_have_been_purged_is_not_compared() -> None:
    limits = Limits(floor=5, process_to=6, read_to=6, newest=6)
    assert faults(account(out=[(6, 0)], rows=[(6, 0), (4, 0), (2, 1)]), limits) == {}


def test_a_position_that_is_there_three_hundred_times_is_doubled() -> None:
    found = account(out=SPOTS, rows=[*SPOTS, *[(2, 0)] * 300])
    assert faults(found) == {("out -> table", DOUBLED): [(2, 0)]}


ORACLE = """
    WITH n AS (SELECT s, o, count(*) FILTER (place = 'raw') AS raw, count(*) FILTER (place = 'out') AS out,
                      count(*) FILTER (place IN ('out', 'letters', 'duplicates')) AS handled,
                      count(*) FILTER (place = 'then_dropped') AS then_dropped,
                      count(*) FILTER (place IN ('rows', 'refused')) AS settled,
                      count(*) FILTER (place IN ('letters', 'refused')) AS letters, count(*) FILTER (place = 'entered') AS entered
               FROM spots GROUP BY s, o),
         judged AS (FROM n SELECT *, s = 0 OR (s > $floor AND NOT (s > $read_to AND s <= $newest)) AS is_judged)
    SELECT 'raw -> out', 'missing', s, o FROM judged WHERE raw > 0 AND handled = 0 AND s > $floor AND s <= $process_to
    UNION ALL SELECT 'raw -> out', 'doubled', s, o FROM judged WHERE raw > 0 AND handled + then_dropped > 1
    UNION ALL SELECT 'raw -> out', 'extra', s, o FROM judged WHERE raw = 0 AND handled + then_dropped > 0 AND is_judged
    UNION ALL SELECT 'out -> table', 'missing', s, o FROM judged
              WHERE raw > 0 AND out > 0 AND settled = 0 AND s > $floor AND s <= $confirmed
    UNION ALL SELECT 'out -> table', 'doubled', s, o FROM judged WHERE raw > 0 AND out > 0 AND settled > 1
    UNION ALL SELECT 'out -> table', 'extra', s, o FROM judged
              WHERE settled > 0 AND CASE WHEN raw > 0 THEN out = 0 AND s > $floor ELSE is_judged END
    UNION ALL SELECT 'dead letters -> raw', 'doubled', s, o FROM judged WHERE entered > 1
    UNION ALL SELECT 'dead letters -> raw', 'extra', s, o FROM judged
              WHERE entered > 0 AND CASE WHEN raw > 0 THEN letters = 0 AND s > $floor ELSE is_judged END
    ORDER BY ALL
"""


@settings(deadline=None)
@given(st.fixed_dictionaries({name: st.lists(ANYWHERE | st.sampled_from(SPOTS), max_size=9) for name in PLACES}), st.data())
def test_the_verdict_is_that_of_sql(places: dict[str, list[Spot]], data: st.DataObject) -> None:
    process_to, confirmed, newest = data.draw(st.integers(0, 6)), data.draw(st.integers(0, 9)), data.draw(st.integers(6, 9))
    limits = Limits(data.draw(st.integers(0, 6)), process_to, 6, newest)
    with fresh_database() as engine:
        rows = [{"place": name, "s": s, "o": o} for name, spots in {**places, "raw": SPOTS}.items() for s, o in spots]
        engine.register("spots", pa.Table.from_pylist(rows))
        asked = {"floor": limits.floor, "read_to": 6, "newest": newest, "process_to": process_to, "confirmed": confirmed}
        wanted = engine.execute(ORACLE, asked).fetchall()
    found = faults(account(confirmed, **places), limits)
    assert sorted((*kind, *spot) for kind, spots in found.items() for spot in spots) == sorted(wanted)


@given(st.lists(st.integers(0, 20)), st.lists(st.integers(0, 20)), st.integers(0, 12), st.integers(0, 20), st.integers(0, 20))
def test_offsets_are_compared_as_multisets(kafka: list[int], raw: list[int], start: int, end: int, kafka_from: int) -> None:
    offsets = Offsets(start, end)
    offsets.add_kafka(np.array(sorted({o for o in kafka if o >= kafka_from}), dtype=np.int64))
    for part in (raw[:4], raw[4:]):
        offsets.add_raw(np.array(part, dtype=np.int64))
    held, times = {o for o in kafka if o >= kafka_from}, Counter(raw)
    inside = range(start, end)
    assert {kind: found.tolist() for kind, found in offsets.faults(kafka_from).items()} == {
        MISSING: [o for o in inside if o in held and not times[o]],
        DOUBLED: [o for o in inside if times[o] > 1],
        EXTRA: [o for o in inside if o >= kafka_from and times[o] and o not in held],
    }


@pytest.mark.parametrize("count", [1, 2])
def test_an_empty_stream_has_no_positions(count: int) -> None:
    raw = RawFrames(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))
    assert (len(raw), raw.up_to(7), raw.numbers(codes([(1, 0)] * count)).tolist()) == (0, 0, [-1] * count)
