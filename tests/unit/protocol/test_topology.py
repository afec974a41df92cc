"""Legs by kind and name: a pipeline of two sources and two sinks, composed without a search through the modules."""

import sys
from collections.abc import Mapping
from copy import deepcopy
from datetime import timedelta
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.protocol import bodies, outcomes, topology
from pipelines.protocol.bodies import IngestDone, IngestPlan, ProcessDone, ProcessPlan, RawTail, SinkDone, SinkPlan
from pipelines.protocol.lease import acquire_all, leg_lock
from pipelines.protocol.ledger import Chain, read_chain
from pipelines.protocol.naming import PUT_BACK, REDRIVE, REPROCESS, Names, leg_token
from pipelines.protocol.purge import Purge
from pipelines.protocol.tally import tally
from pipelines.protocol.topology import DEAD_LETTERS, KINDS, LegId, Topology, for_every_kind, in_data_order, is_token
from pipelines.testing import LEGS, ManualClock, MemoryLog

NAMES = Names("orders")
TWO = Topology.of(["orders", "clicks.v2"], ["", "audit"])
ORDERS, CLICKS, PROCESS, TABLE, AUDIT = TWO.legs
NAMED = st.builds(LegId, st.sampled_from(KINDS), st.text())


def opened(log: MemoryLog, topology: Topology = TWO) -> dict[LegId, Chain]:
    chains = {leg: Chain(log, NAMES, leg.chain, 1) for leg in topology.legs}
    for chain in chains.values():
        chain.open()
    return chains


def append(log: MemoryLog, subject: str, headers: Mapping[str, str] = {}) -> int:
    last = log.last(f"tf-orders-{subject.split('.')[2]}", subject)
    return log.publish(subject, b"frame", dict(headers), last.sequence if last else 0)


def ingest(log: MemoryLog, chain: Chain, source: str, rows: int, is_open: bool = False) -> int:
    """One raw frame of `rows` records of a source; with `is_open` its plan stays open."""
    offset = (chain.state.to or {}).get("0", 0)
    start, to = {"0": offset}, {"0": offset + rows}
    chain.plan(IngestPlan(start=start, to=to))
    sequence = append(log, NAMES.raw(source, 0))
    if not is_open:
        counts = {"offsets": rows, "rows_in": rows, "rows_out": rows}
        chain.done(IngestDone(start=start, to=to, counts=counts, tails={"0": RawTail(sequence, offset + rows - 1)}))
    return sequence


def process(log: MemoryLog, chain: Chain, to: int, rows: int) -> None:
    """All raw frames up to `to` as one range, which gives a frame for each sink."""
    start = chain.state.to or 0
    chain.plan(ProcessPlan(start=start, to=to, config="v"))
    for role in TWO.writes(PROCESS):
        append(log, f"tf.orders.{role}.0", {"Tf-First": f"{start + 1}.0.0", "Tf-Last": f"{to}.0.0"})
    clock_us = int(log.clock.now.timestamp()) * 1_000_000
    chain.done(ProcessDone(start=start, to=to, config="v", counts={"rows_in": rows, "rows_out": rows}, clock_us=clock_us))


def confirm(chain: Chain, to: int, rows: int) -> None:
    start = chain.state.to or 0
    chain.plan(SinkPlan(start=start, to=to, config="v", rows=rows, digest=""))
    chain.done(SinkDone(start=start, to=to, counts={"rows_in": rows, "rows_out": rows}))


def held(log: MemoryLog, role: str) -> list[int]:
    return [message.sequence for message in log.messages(NAMES.stream(role))]


def load_again(module: object) -> None:
    """Run a module's code once more, beside the one that is loaded."""
    spec = spec_from_file_location("loaded_again", str(module.__file__))
    made = module_from_spec(spec)
    sys.modules["loaded_again"] = made
    try:
        spec.loader.exec_module(made)
    finally:
        del sys.modules["loaded_again"]


def test_one_source_and_one_sink_are_the_bare_kinds() -> None:
    assert LEGS == ("ingest", "process", "sink")
    assert [NAMES.chain(leg) for leg in LEGS] == [f"tf.orders.ledger.{kind}" for kind in ("ingest", "process", "sink")]
    assert [leg.chain for leg in LEGS] == [bodies.INGEST_CHAIN, bodies.PROCESS_CHAIN, bodies.SINK_CHAIN]
    assert [leg.reads for leg in LEGS] == [None, "raw", "out"]


def test_every_further_source_and_sink_has_its_name() -> None:
    assert TWO.legs == ("ingest", "ingest:clicks.v2", "process", "sink", "sink:audit")
    assert [(leg.kind, leg.name) for leg in (ORDERS, CLICKS)] == [("ingest", ""), ("ingest", "clicks.v2")]
    assert [TWO.file_id(leg) for leg in TWO.legs] == ["orders", "clicks.v2", "", "", "audit"]


def test_no_two_legs_share_a_subject_or_a_lock(tmp_path: Path) -> None:
    others = [NAMES.chain(REDRIVE), NAMES.chain(REPROCESS), NAMES.lease(REDRIVE), NAMES.lease(PUT_BACK), NAMES.compaction()]
    subjects = [*(NAMES.chain(leg) for leg in TWO.legs), *(NAMES.lease(leg) for leg in TWO.legs), *others]
    assert len({*subjects}) == len(subjects)
    assert len({leg_lock(tmp_path, leg).lock_file for leg in TWO.legs}) == len(TWO.legs)
    assert len({leg.chain.leg for leg in TWO.legs}) == len(TWO.legs)


def test_the_legs_of_two_sources_are_held_side_by_side(tmp_path: Path) -> None:
    log = MemoryLog(ManualClock())
    orders, clicks = acquire_all(log, NAMES, tmp_path, [ORDERS]), acquire_all(log, NAMES, tmp_path, [CLICKS])
    assert (orders[ORDERS].holder.epoch, clicks[CLICKS].holder.epoch) == (1, 1)
    for lease in (*orders.values(), *clicks.values()):
        lease.release()


def test_two_chains_of_a_kind_do_not_mix() -> None:
    log = MemoryLog(ManualClock())
    chains = opened(log)
    ingest(log, chains[CLICKS], "clicks.v2", 4)
    assert read_chain(log, NAMES, ORDERS.chain).to is None
    assert read_chain(log, NAMES, CLICKS.chain).to == {"0": 4}


@given(NAMED)
def test_a_leg_is_read_back_from_its_text_and_its_token(leg: LegId) -> None:
    assert LegId.parse(str(leg)) == LegId.of_token(leg.token) == leg
    assert not {*leg.token} & {*".*>/-: "}
    assert repr(leg) == f"LegId({leg.kind!r}, {leg.name!r})"
    assert deepcopy(leg) == leg
    assert isinstance(deepcopy(leg), LegId)


@given(NAMED, NAMED)
def test_tokens_differ_even_where_case_is_ignored(one: LegId, other: LegId) -> None:
    assert (one.token.lower() == other.token.lower()) == (one == other)


@pytest.mark.parametrize("token", ["", "lease", "ingest=3A", "ingest=3Aa-b", "ingest=3AA", "ingest=3a", "ingest=3A%61"])
def test_another_text_is_no_token(token: str) -> None:
    assert not is_token(token)
    with pytest.raises(ValueError, match=r"kind of leg|no token|no name"):
        LegId.of_token(token)


def test_the_stream_of_a_named_sink_is_no_other_pipelines() -> None:
    raw_sink = LegId("sink", "raw")
    assert NAMES.stream(raw_sink.reads) != Names("orders-out").stream("raw")
    assert LegId("sink", "a-b").reads == "out_a=2Db"


def test_every_leg_knows_its_neighbours() -> None:
    assert [TWO.upstream(leg) for leg in TWO.legs] == [(), (), (ORDERS, CLICKS), (PROCESS,), (PROCESS,)]
    assert [TWO.writes(leg) for leg in TWO.legs] == [("raw",), ("raw",), ("out", "out_audit"), (), ()]
    assert TWO.roles_between == ("raw", "out", "out_audit")
    assert TWO.downstream_first == (AUDIT, TABLE, PROCESS, REDRIVE, ORDERS, CLICKS)
    assert TWO.up_to({TABLE}) == (ORDERS, CLICKS, PROCESS, TABLE)
    assert TWO.ingest_of(NAMES.redriven("clicks.v2", 3)) == CLICKS


def test_a_kind_selects_all_its_legs_and_a_name_one() -> None:
    assert TWO.select([]) == TWO.legs
    assert TWO.select(["ingest"]) == (ORDERS, CLICKS)
    assert TWO.select(["sink:audit", "ingest:orders"]) == (ORDERS, AUDIT)
    assert [TWO.select([option]) for option in TWO.options[:3]] == [(ORDERS,), (CLICKS,), (PROCESS,)]
    with pytest.raises(ValueError, match=r"unknown leg: sink:other; the legs are ingest:orders, ingest:clicks\.v2, process"):
        TWO.select(["sink:other"])


def test_legs_are_sorted_in_the_order_of_the_data() -> None:
    assert in_data_order([AUDIT, PROCESS, CLICKS, TABLE, ORDERS]) == [*TWO.legs]


def test_ids_must_be_distinct() -> None:
    for sources in ([], ["a", "a"], ["a", ""]):
        with pytest.raises(ValueError, match="distinct ids"):
            Topology.of(sources, [""])


def test_process_waits_for_the_sum_of_its_sources() -> None:
    log = MemoryLog(ManualClock())
    chains = opened(log)
    ingest(log, chains[ORDERS], "orders", 10)
    to = ingest(log, chains[CLICKS], "clicks.v2", 7)
    before = tally(log, NAMES, TWO)
    assert [leg.waiting for leg in before.legs] == [0, 0, 17, 0, 0]
    process(log, chains[PROCESS], to, 17)
    confirm(chains[TABLE], 1, 17)
    after = tally(log, NAMES, TWO)
    assert [(leg.leg, leg.rows_in, leg.waiting) for leg in after.legs] == [
        ("ingest", 10, 0),
        ("ingest:clicks.v2", 7, 0),
        ("process", 17, 0),
        ("sink", 17, 0),
        ("sink:audit", 0, 17),
    ]
    assert (before.residue, after.residue) == (0, 0)


def test_an_open_plan_of_one_source_explains_rows_ahead() -> None:
    log = MemoryLog(ManualClock())
    chains = opened(log)
    ingest(log, chains[ORDERS], "orders", 10)
    to = ingest(log, chains[CLICKS], "clicks.v2", 7, is_open=True)
    process(log, chains[PROCESS], to, 17)
    assert tally(log, NAMES, TWO).residue == 0
    plan = chains[CLICKS].state.plan.body
    chains[CLICKS].done(IngestDone(start=plan.start, to=plan.to, counts={"offsets": 6, "rows_in": 6, "rows_out": 6}))
    assert tally(log, NAMES, TWO).residue == 1


def test_raw_is_kept_for_the_slowest_sink() -> None:
    log = MemoryLog(ManualClock())
    chains = opened(log)
    for number in range(4):
        log.clock.advance(timedelta(hours=1))
        process(log, chains[PROCESS], ingest(log, chains[(ORDERS, CLICKS)[number % 2]], TWO.file_ids[number % 2], 1), 1)
    confirm(chains[TABLE], 4, 4)
    purge = Purge(log, NAMES, TWO, PROCESS, timedelta(0))
    purge.by_age()
    assert held(log, "raw") == [1, 2, 3, 4]
    confirm(chains[AUDIT], 4, 4)
    purge.by_age()
    assert held(log, "raw") == [3, 4]


FALLBACK = Topology.of(["orders"], ["", "audit", "rest"], {"": "rest"})
REST = FALLBACK.sinks[2]


def refuse(log: MemoryLog, bucket: int, sequence: int) -> None:
    """The first sink writes the row of a raw frame for its fallback."""
    append(log, f"tf.orders.out_rest.{bucket}", {"Tf-First": f"{sequence}.0.0", "Tf-Last": f"{sequence}.0.0"})


def four_refused(log: MemoryLog) -> dict[LegId, Chain]:
    """Four raw frames of an hour each; the first sink has refused those of 3 and 2, in this order, from one chunk of two buckets."""
    chains = opened(log, FALLBACK)
    for _ in range(4):
        log.clock.advance(timedelta(hours=1))
        process(log, chains[PROCESS], ingest(log, chains[FALLBACK.ingests[0]], "orders", 1), 1)
    refuse(log, 0, 3)
    refuse(log, 1, 2)
    for sink in (TABLE, AUDIT):
        confirm(chains[sink], 4, 4)
    return chains


def test_a_fallback_reads_what_the_refusing_sink_writes() -> None:
    assert FALLBACK.writes(PROCESS) == ("out", "out_audit")
    assert FALLBACK.writes(TABLE) == ("out_rest",)
    assert (FALLBACK.upstream(REST), FALLBACK.upstream(AUDIT)) == ((TABLE,), (PROCESS,))
    assert FALLBACK.up_to([REST]) == (FALLBACK.ingests[0], PROCESS, TABLE, REST)


def test_raw_is_kept_for_rows_that_wait_for_a_fallback() -> None:
    log = MemoryLog(ManualClock())
    chains = four_refused(log)
    purge = Purge(log, NAMES, FALLBACK, PROCESS, timedelta(0))
    purge.by_age()
    assert held(log, "raw") == [1, 2, 3, 4]
    confirm(chains[REST], 2, 2)
    purge.by_age()
    assert held(log, "raw") == [4]


def test_a_fallbacks_rows_are_kept_as_long_as_raw() -> None:
    log = MemoryLog(ManualClock())
    chains = four_refused(log)
    confirm(chains[REST], 1, 1)
    confirm(chains[REST], 2, 1)
    refuse(log, 0, 4)
    refuse(log, 1, 4)
    confirm(chains[REST], 4, 2)
    purge = Purge(log, NAMES, FALLBACK, REST, timedelta(0))
    purge.by_age()
    assert held(log, "out_rest") == [1, 2, 3, 4]
    Purge(log, NAMES, FALLBACK, PROCESS, timedelta(0)).by_age()
    assert held(log, "raw") == [4]
    purge.by_age()
    assert held(log, "out_rest") == [2, 3, 4]


def test_refused_rows_are_accounted_beside_a_fallback() -> None:
    log = MemoryLog(ManualClock())
    chains = opened(log, FALLBACK)
    process(log, chains[PROCESS], ingest(log, chains[FALLBACK.ingests[0]], "orders", 5), 5)
    refuse(log, 0, 1)
    chains[TABLE].plan(SinkPlan(start=0, to=1, config="v", rows=5, digest=""))
    chains[TABLE].done(SinkDone(start=0, to=1, counts={"rows_in": 5, "rows_out": 3, "rows_diverted": 2}))
    confirm(chains[AUDIT], 1, 5)
    confirm(chains[REST], 1, 1)
    found = tally(log, NAMES, FALLBACK)
    assert {leg.leg: leg.waiting for leg in found.legs} == {"ingest": 0, "process": 0, "sink": 0, "sink:audit": 0, "sink:rest": 1}
    assert found.residue == 0
    confirm(chains[REST], 1, 2)
    assert tally(log, NAMES, FALLBACK).residue == 1


def test_frames_of_a_source_with_an_open_plan_are_kept() -> None:
    log = MemoryLog(ManualClock())
    chains = opened(log)
    ingest(log, chains[CLICKS], "clicks.v2", 1)
    ingest(log, chains[CLICKS], "clicks.v2", 1, is_open=True)
    append(log, NAMES.raw("clicks.v2", 0))
    process(log, chains[PROCESS], 3, 3)
    log.clock.advance(timedelta(hours=1))
    process(log, chains[PROCESS], ingest(log, chains[ORDERS], "orders", 1), 1)
    for sink in (TABLE, AUDIT):
        confirm(chains[sink], 2, 4)
    Purge(log, NAMES, TWO, PROCESS, timedelta(0)).by_age()
    assert held(log, "raw") == [1, 2, 3, 4]
    plan = chains[CLICKS].state.plan.body
    chains[CLICKS].done(IngestDone(start=plan.start, to=plan.to, tails={"0": RawTail(3, 1)}))
    Purge(log, NAMES, TWO, PROCESS, timedelta(0)).by_age()
    assert held(log, "raw") == [3, 4]


def test_a_table_by_kind_must_be_complete() -> None:
    assert for_every_kind(dict.fromkeys(KINDS, 1)) == dict.fromkeys(KINDS, 1)
    with pytest.raises(TypeError, match="the entries ingest, process; the kinds are ingest, process, sink, dead_letters"):
        for_every_kind({"ingest": 1, "process": 1})


def test_a_kind_without_a_chain_fails_at_import(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(bodies.CHAINS, "sink")
    with pytest.raises(TypeError, match="a table by kind of leg has the entries ingest, process, dead_letters;"):
        load_again(topology)


def test_a_kind_without_outcomes_fails_at_import(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(outcomes.BY_KIND, "process")
    with pytest.raises(TypeError, match="a table by kind of leg has the entries ingest, sink, dead_letters;"):
        load_again(topology)


@pytest.mark.parametrize("name", ["pipelines.runner.share", "pipelines.cli.plan"])
def test_a_kind_that_a_module_does_not_know_fails_at_import(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    __import__(name)
    monkeypatch.setattr(topology, "KINDS", (*KINDS, "join"))
    with pytest.raises(TypeError, match="the kinds are ingest, process, sink, dead_letters, join"):
        load_again(sys.modules[name])


def test_a_token_leaves_other_names_as_they_are() -> None:
    assert [leg_token(name) for name in (REDRIVE, REPROCESS, PUT_BACK)] == [REDRIVE, REPROCESS, PUT_BACK]


LETTERS = LegId(DEAD_LETTERS, "rejected")
WITH_LETTERS = Topology.of(["orders"], ["", "audit"], {}, ["rejected"])


def test_a_table_of_dead_letters_reads_what_others_reject() -> None:
    assert WITH_LETTERS.legs[-1] == LETTERS
    assert (LETTERS.reads, LETTERS.purges) == ("dlq", None)
    assert WITH_LETTERS.upstream(LETTERS) == (PROCESS, TABLE, AUDIT)
    assert (WITH_LETTERS.writes(PROCESS), WITH_LETTERS.writes(TABLE)) == (("out", "out_audit"), ())
    assert (WITH_LETTERS.sinks, WITH_LETTERS.tables) == ((TABLE, AUDIT), (TABLE, AUDIT, LETTERS))
    assert WITH_LETTERS.downstream_first[:2] == (LETTERS, AUDIT)
    assert WITH_LETTERS.select(["dead_letters"]) == WITH_LETTERS.select(["dead_letters:rejected"]) == (LETTERS,)
    for ids in ([""], ["audit"], ["rejected", "rejected"]):
        with pytest.raises(ValueError, match="need distinct ids"):
            Topology.of(["orders"], ["", "audit"], {}, ids)


def test_a_table_of_dead_letters_waits_for_those_of_all_legs() -> None:
    log = MemoryLog(ManualClock())
    chains = opened(log, WITH_LETTERS)
    ingest(log, chains[WITH_LETTERS.ingests[0]], "orders", 9)
    chains[PROCESS].plan(ProcessPlan(start=0, to=1, config="v"))
    chains[PROCESS].done(ProcessDone(start=0, to=1, config="v", counts={"rows_in": 9, "rows_out": 7, "rows_rejected": 2}, clock_us=1))
    chains[TABLE].plan(SinkPlan(start=0, to=1, config="v", rows=7, digest=""))
    chains[TABLE].done(SinkDone(start=0, to=1, counts={"rows_in": 7, "rows_out": 6, "rows_rejected": 1}))
    confirm(chains[AUDIT], 1, 7)
    confirm(chains[LETTERS], 1, 2)
    found = tally(log, NAMES, WITH_LETTERS)
    (letters,) = found.of_kind(DEAD_LETTERS)
    assert (letters.rows_in, letters.waiting, letters.residue, found.residue) == (2, 1, 0, 0)
    assert found.dead_letters.rows_in == 3
    confirm(chains[LETTERS], 2, 2)
    assert tally(log, NAMES, WITH_LETTERS).residue == 1


def test_the_purge_of_a_table_of_dead_letters_takes_entries_only() -> None:
    log = MemoryLog(ManualClock())
    chain = opened(log, WITH_LETTERS)[LETTERS]
    for number in range(4):
        log.clock.advance(timedelta(hours=1))
        append(log, NAMES.dead_letters("process", 0))
        confirm(chain, number + 1, 1)
    Purge(log, NAMES, WITH_LETTERS, LETTERS, timedelta(0)).by_age()
    assert held(log, "dlq") == [1, 2, 3, 4]
    assert len([message for message in log.messages(NAMES.stream("ledger")) if message.subject == NAMES.chain(LETTERS)]) == 2
    assert read_chain(log, NAMES, LETTERS.chain).to == 4
