"""The account at the end of a modelled history: every record once in the table or among the dead letters, and every count true."""

from collections import Counter
from dataclasses import astuple, dataclass
from itertools import accumulate
from threading import Event
from typing import TYPE_CHECKING

from pipelines.process import stage_config
from pipelines.process.leg import ProcessLeg
from pipelines.process.program import Program
from pipelines.process.watermarks import IDLE_RECORDS
from pipelines.protocol.bodies import PROCESS_CHAIN
from pipelines.protocol.ledger import Chain, Entry
from pipelines.protocol.naming import REDRIVE, bucket_of_partition, is_tick
from pipelines.protocol.naming import is_then_dropped as is_of_then_dropped
from pipelines.protocol.positions import first_and_last
from pipelines.protocol.records import HEADER_PARTITION, RAW_SCHEMA
from pipelines.protocol.redrive import DISCARD, rows_of
from pipelines.protocol.run_lists import live_lists
from pipelines.protocol.tally import tally
from pipelines.protocol.topology import chain_of
from support.protocol_outside import FIRST, NAMES, ModelLog, Outside
from support.protocol_stages import BUCKETS, MORE, apply, is_then_dropped, kind, produced, stored_rows, takes, time_us
from support.watermark_oracle import marks

if TYPE_CHECKING:
    from support.protocol_world import World

At = tuple[int, int]
"""The raw position of a record: sequence and ordinal."""


@dataclass
class Outcomes:
    """What must have become of all records: rows by position for each sink leg, dead letters by position, and the others.

    `then_dropped`: the first of their keys, which a later step drops; `filtered`: all that a step has dropped. `apart`: how many records of
    the first sink are neither rows, dead letters nor duplicates, nor in `then_dropped`. `behind`: dead letters of steps behind any dedup.
    """

    accepted: dict[str, dict[At, tuple]]
    refused: dict[At, tuple]
    duplicates: int
    then_dropped: set[At]
    filtered: int
    apart: int = 0
    behind: frozenset[At] = frozenset()


NARROWED = ("to", "rest", "standing")


def entries(log: ModelLog, leg: str) -> list[Entry]:
    """Each is decoded once: an account looks at a chain a dozen times."""
    subject = NAMES.chain(leg)
    chain = [m for m in log.everything(NAMES.stream("ledger")) if m.subject == subject]
    known = log.entries.setdefault(leg, [])
    known += [chain_of(leg).decode(message) for message in chain[len(known) :]]
    return known


def program(log: ModelLog, version: str) -> Program:
    """Each is read once: a version is the digest of what it names."""
    if version not in log.programs:
        log.programs[version] = stage_config.load(log, NAMES, version)
    return log.programs[version]


def check_account(world: "World", expected: Outcomes) -> None:
    log = world.log
    legs = world.topology.legs
    for leg in (*legs, REDRIVE):
        check_chain(entries(log, leg))
    begin = {}
    for leg, source in world.topology.sources.items():
        anchor = next(entry for entry in entries(log, leg) if entry.kind == "plan")
        begin |= {p: anchor.body.to.get(str(p), 0) for p in world.topics[source].held}
    read, skipped = check_raw(world, begin)
    accepted_by, refused, duplicates, then_dropped = expected.accepted, expected.refused, expected.duplicates, expected.then_dropped
    accepted = {at: row for by_leg in reversed(accepted_by.values()) for at, row in by_leg.items()}
    dead_letters = stored_dead_letters(log)
    assert len(dead_letters) == sum(m.rows for m in log.everything(NAMES.stream("dlq"))), "a letter is there twice"
    of_sink = {at for at, row in dead_letters.items() if row["stage"] == "sink"}
    abandoned = {at for at in of_sink if dead_letters[at]["code"] == "abandoned"}
    # A table that was mended has refused some of these rows only.
    (refuser,) = [leg for leg, table in world.tables.items() if table is world.refuser]
    assert {dead_letters[at]["sink"] for at in of_sink} <= {refuser}
    assert of_sink <= accepted_by[refuser].keys(), "a sink has refused what it was not to get"
    assert all(accepted_by[refuser][at][2].startswith(b"fine") for at in of_sink - abandoned)
    assert world.refuser.is_worse or all(at in of_sink for at, row in accepted_by[refuser].items() if world.refuser.refuses(row[2]))
    stored_by = {leg: [row for at, row in rows.items() if leg != refuser or at not in of_sink] for leg, rows in accepted_by.items()}
    assert_only_listed_runs_are_left(world)
    for leg, table in world.tables.items():
        assert Counter(table.rows) == Counter(stored_by[leg]), f"table of {leg}"
    for row in accepted:
        refused |= {row: (*accepted[row][:2], produced(accepted[row][2]))} if row in of_sink else {}
    assert {at: (row["_tf_partition"], row["_tf_offset"], row["value"]) for at, row in dead_letters.items()} == refused, "dead letters"
    for row in dead_letters.values():
        assert row["_tf_partition"] in world.topics[row["source"]].held
        before = dead_letters[tuple(map(int, row["origin"].split(".")))] if row["origin"] else {"attempts": 0, "past_dedup": False}
        assert row["attempts"] == before["attempts"] + 1
        is_behind = row["stage"] == "sink" or position_of(row) in expected.behind
        assert row["past_dedup"] == (is_behind or before["past_dedup"])
    check_then_dropped(log, then_dropped)
    redriven, discarded = check_taken(world, dead_letters)
    for leg, stored in stored_by.items():
        # A dead letter of a sink is that sink's alone.
        waiting = [row[:2] for at, row in refused.items() if at not in redriven and dead_letters[at]["sink"] in (None, leg)]
        assert max(Counter([*waiting, *(row[:2] for row in stored)]).values(), default=1) == 1, "a record is in two places"
        if leg == FIRST:
            assert len(waiting) + len(stored) + duplicates + len(then_dropped) + expected.apart == read
    totals = {leg: [e for e in entries(log, leg) if e.kind == "done"] for leg in (*legs, REDRIVE)}
    counts = {leg: Counter(done[-1].body.totals) if done else Counter() for leg, done in totals.items()}
    for leg in world.topology.ingests[1:]:
        counts["ingest"] += counts[leg]
    assert counts["ingest"]["rows_out"] == read
    assert counts["process"]["rows_in"] == read + len(redriven)
    assert counts["ingest"]["offsets"] == sum(world.of_partitions("end").values()) - sum(begin.values())
    assert counts["ingest"]["offsets_skipped"] == skipped
    assert counts["ingest"]["offsets_without_record"] == counts["ingest"]["offsets"] - read - skipped
    assert counts["process"]["rows_out"] == len(accepted)
    for leg, stored in stored_by.items():
        refused_here = len(of_sink) if leg == refuser else 0
        found = counts[leg]["rows_in"], counts[leg]["rows_out"], counts[leg]["rows_rejected"]
        assert found == (len(accepted_by[leg]), len(stored), refused_here)
    assert counts[refuser]["rejected.sink.abandoned"] == len(abandoned)
    assert (counts["process"]["rows_rejected"], counts["process"]["duplicates"]) == (len(refused) - len(of_sink), duplicates)
    assert (counts["process"]["dropped.filter"], counts["process"]["then_dropped"]) == (expected.filtered, len(then_dropped))
    assert (counts[REDRIVE]["redriven"], counts[REDRIVE]["discarded"]) == (len(redriven), len(discarded))
    account = tally(log, NAMES, world.topology)
    assert account.residue == 0
    assert {leg.waiting for leg in account.legs} == {0}
    assert list(account.dead_letters.outcomes.values()) == [
        len(redriven),
        len(discarded),
        len(dead_letters) - len(redriven) - len(discarded),
    ]


def stored_dead_letters(log: ModelLog) -> dict[At, dict]:
    """All that were ever written, by position."""
    return {position_of(row): row for m in log.everything(NAMES.stream("dlq")) for row in stored_rows(m.payload).to_pylist()}


def check_then_dropped(log: ModelLog, expected: set[tuple[int, int]]) -> None:
    """The stream beside the copies names each record that dedup accepted and a later step dropped, once, in order by bucket."""
    frames = [message for message in log.everything(NAMES.stream("duplicates")) if is_of_then_dropped(message.subject)]
    found = [(message.subject, *position_of(row)) for message in frames for row in stored_rows(message.payload).to_pylist()]
    assert sorted(found, key=lambda row: row[0]) == sorted(found), "then dropped"
    assert Counter((sequence, ordinal) for _, sequence, ordinal in found) == Counter(expected), "then dropped"


def position_of(row: dict[str, object]) -> tuple[int, int]:
    return row["_tf_sequence"], row["_tf_ordinal"]


def check_taken(world: "World", dead_letters: dict[tuple[int, int], dict]) -> tuple[set, set]:
    """(positions of the letters that entered again, of those that were discarded): no letter twice, each as it was, or as it was edited."""
    log, taken_rows = world.log, []
    discarded = set()
    for plan in (e for e in entries(log, REDRIVE) if e.kind == "plan"):
        for sequence, ranges in plan.body.letters:
            rows = rows_of(ranges).tolist()
            taken_rows += [(sequence, row) for row in rows]
            if plan.body.action == DISCARD:
                (frame,) = [stored_rows(m.payload) for m in log.everything(NAMES.stream("dlq")) if m.sequence == sequence]
                discarded |= {position_of(row) for row in frame.take(rows).to_pylist()}
    assert len(taken_rows) == len(set(taken_rows)), "a letter was taken twice"
    redriven = {}
    for message in log.everything(NAMES.stream("raw")):
        if ".redrive." in message.subject:
            for row in stored_rows(message.payload).to_pylist():
                origin = tuple(int(part) for part in row["origin"].split("."))
                assert origin not in redriven
                redriven[origin] = row
                dead_letter = dead_letters[origin]
                assert row["value"] in (dead_letter["value"], world.mended)
                assert row["sink"] == dead_letter["sink"]
                assert message.headers["Tf-Partition"] == str(dead_letter["_tf_partition"])
                expected = (
                    dead_letter["_tf_partition"],
                    dead_letter["_tf_offset"],
                    dead_letter["attempts"],
                    dead_letter["first_time"],
                    dead_letter["past_dedup"],
                )
                assert (row["partition"], row["offset"], row["attempts"], row["first_time"], row["past_dedup"]) == expected
    assert len(redriven) + len(discarded) == len(taken_rows)
    assert discarded.isdisjoint(redriven)
    return set(redriven), discarded


def check_chain(chain: list[Entry]) -> None:
    """Plans and dones alternate, each done closes its plan, each range begins where the one before ended, totals are sums.

    A plan may be amended, for the same range or less of it, and a done said again with the clock reset.
    """
    to, plan, done, totals, epoch = None, None, None, Counter(), 0
    for entry in chain:
        assert entry.epoch >= epoch
        epoch = entry.epoch
        if entry.kind == "plan" and plan is not None:
            check_narrowing(plan, entry)
            narrowed = NARROWED if getattr(entry.body, "standing", ()) else ()
            decided = dict.fromkeys(("pieces", "poison", "times", "abandoned", *narrowed), 0)
            assert {**vars(plan.body), **vars(entry.body), **decided} == {**vars(plan.body), **decided}
            plan = entry
        elif entry.kind == "plan":
            start = entry.body.start
            assert to is None or {**dict.fromkeys(start, 0), **to} == start if isinstance(start, dict) else (to or 0) == start
            plan = entry
        elif entry.kind == "done" and plan is None:
            reset = {"clock_resets": 0}
            assert done is not None and {**vars(done.body), **reset} == {**vars(entry.body), **reset}
            done = entry
        elif entry.kind == "done":
            assert plan is not None
            done = entry
            assert (entry.body.start, entry.body.to) == (plan.body.start, plan.body.to)
            totals.update(entry.body.counts)
            assert {k: v for k, v in totals.items() if v} == {k: v for k, v in entry.body.totals.items() if v}
            to, plan = entry.body.to, None
    # A plan without a position in it may wait for the next batch: it has no effect.
    assert plan is None or plan.body.start == plan.body.to


def check_narrowing(before: Entry, after: Entry) -> None:
    """A plan that is amended covers less only of partitions that it names, and says where it had ended."""
    standing, rest = getattr(after.body, "standing", ()), getattr(after.body, "rest", {})
    for partition, end in after.body.to.items() if standing else ():
        was = before.body.to[partition]
        assert after.body.start[partition] <= end <= was
        assert end == was or (partition in standing and rest[partition] == was)


def check_raw(world: "World", begin: dict[int, int]) -> tuple[int, int]:
    """Frames cover each partition's offsets without gap or overlap, and hold its records but those that had expired.

    Returns the records stored and the offsets skipped.
    """
    produced = {(p, o): v for p, held in world.of_partitions("held").items() for o, v in held if o >= begin[p]}
    stored: dict[tuple[int, int], bytes] = {}
    reached, skipped = dict(begin), 0
    for message in (m for m in world.log.everything(NAMES.stream("raw")) if ".redrive." not in m.subject and not is_tick(m.subject)):
        partition = int(message.headers["Tf-Partition"])
        first, last = int(message.headers["Tf-First"]), int(message.headers["Tf-Last"])
        assert first == reached[partition]
        reached[partition] = last + 1
        frame = stored_rows(message.payload)
        assert frame.schema == RAW_SCHEMA
        offsets = frame["offset"].to_pylist()
        assert all(first <= offset <= last for offset in offsets)
        stored.update(zip([(partition, offset) for offset in offsets], frame["value"].to_pylist(), strict=True))
        if "Tf-Skipped" in message.headers:
            assert int(message.headers["Tf-Skipped"]) == last - first + 1
            assert last < world.of_partitions("first")[partition]
            skipped += last - first + 1
            produced = {(p, o): v for (p, o), v in produced.items() if p != partition or not first <= o <= last}
    assert reached == world.of_partitions("end")
    assert stored == produced
    return len(stored), skipped


def assert_only_listed_runs_are_left(world: "World") -> None:
    """After the look that every start takes, as everything is done: killed attempts, and runners that were overtaken, have left more."""
    chain, lists = live_lists(world.log, NAMES)
    outside = Outside(world, world.epoch, world.config.version)
    held = Chain(world.log, NAMES, PROCESS_CHAIN, world.epoch)
    held.state = chain
    ProcessLeg(outside, held, None, Event())._sweep()
    listed = {(key, name) for key, listing in lists.items() for name, *_ in listing}
    assert listed == {(key, name) for key, storage in world.storages.items() for name in storage.names()}


def expected_outcomes(world: "World") -> Outcomes:
    """What must have become of all records, by the configuration of the plan that covers each raw frame; checks the order of out frames."""
    log = world.log
    plans = [e for e in entries(log, "process") if e.kind == "plan"]
    accepted, refused, duplicates, then_dropped = {leg: {} for leg in world.tables}, {}, 0, set()
    last_of: dict[bytes, int] = {}
    arrivals = arrivals_us(world)
    watermarks = watermarks_us(world)
    for message in log.everything(NAMES.stream("raw")):
        plan, *_ = [p for p in plans if p.body.start < message.sequence <= p.body.to]
        config = program(log, plan.body.config)
        for ordinal, row in enumerate(stored_rows(message.payload).to_pylist()):
            at, value, is_past = (message.sequence, ordinal), row["value"], bool(row.get("past_dedup"))
            outcome = apply(value, config)
            if outcome is None:
                refused[at] = (row["partition"], row["offset"], value)
                continue
            time = arrivals[message.sequence] if world.lateness_us is None else time_us(value)
            watermark = watermarks.get(at)
            if not is_past and watermark is not None and time < watermark:
                refused[at] = (row["partition"], row["offset"], value)
                continue
            before = last_of.get(kind(value))
            is_expired = before is not None and watermark is not None and before + world.window_us <= watermark
            if not is_past and before is not None and not is_expired and abs(time - before) < world.window_us:
                duplicates += 1
                continue
            if not is_past:
                last_of[kind(value)] = time
            if is_then_dropped(value, config):
                then_dropped.add(at)
                continue
            for leg, rows in accepted.items():
                if takes(leg, value, row.get("sink")):
                    rows[at] = (row["partition"], row["offset"], outcome if leg == FIRST else outcome.removesuffix(MORE))
    raw = {m.sequence: m for m in log.everything(NAMES.stream("raw"))}
    ends: dict[str, object] = {}
    for role, message in ((leg.input_role, message) for leg in accepted for message in log.everything(NAMES.stream(leg.input_role))):
        first, last = first_and_last(stored_rows(message.payload))
        assert world.window_us or message.subject == NAMES.out(
            bucket_of_partition(int(raw[first.sequence].headers[HEADER_PARTITION]), BUCKETS), role
        )
        assert message.subject not in ends or ends[message.subject] < first
        ends[message.subject] = last
    return Outcomes(accepted, refused, duplicates, then_dropped, filtered=len(then_dropped))


def arrivals_us(world: "World") -> dict[int, int]:
    """The arrival of each raw frame: it never steps back, and behind a reset goes on at half the server's speed until that is there.

    Checks that the ledger says the same, and the table of its rows.
    """
    done = [e for e in entries(world.log, "process") if e.kind == "done"]
    resets = [astuple(reset) for reset in done[-1].body.clock_resets] if done else []
    arrivals, arrival = {}, 0
    for message in world.log.everything(NAMES.stream("raw")):
        server = int(message.time.timestamp() * 1_000_000)
        since = [reset for reset in resets if reset[0] < message.sequence]
        if since:
            _, last, then, ahead = since[-1]
            server = min(server, then) if message.sequence <= last else server
            server = max(server, ahead + max(0, server - then) // 2)
        arrivals[message.sequence] = arrival = max(arrival, server)
    for entry in done:
        expected = [arrivals[sequence] for sequence in range(entry.body.start + 1, entry.body.to + 1)]
        assert list(accumulate(entry.body.arrivals)) == expected, "arrivals"
    positions = [place for table in world.tables.values() for place in table.positions]
    assert all(arrivals[sequence] == arrival for sequence, _, _, arrival in positions), "arrivals"
    return arrivals


def watermarks_us(world: "World") -> dict[tuple[int, int], int | None]:
    """Of each record that came to dedup, by raw position: what it must not be older than; nothing where windows go by arrivals."""
    if world.lateness_us is None:
        return {}
    plans = [e for e in entries(world.log, "process") if e.kind == "plan"]
    frames, places = [], []
    for message in world.log.everything(NAMES.stream("raw")):
        plan, *_ = [p for p in plans if p.body.start < message.sequence <= p.body.to]
        config = program(world.log, plan.body.config)
        values = enumerate(stored_rows(message.payload)["value"].to_pylist())
        timed = [(ordinal, time_us(value)) for ordinal, value in values if apply(value, config) is not None]
        frames.append((None if ".redrive." in message.subject else int(message.headers["Tf-Partition"]), [time for _, time in timed]))
        places.append([(message.sequence, ordinal) for ordinal, _ in timed])
    found = marks(frames, world.window_us, IDLE_RECORDS)
    return {
        partition: None if mark is None else mark - world.lateness_us
        for row, of_frame in zip(places, found, strict=True)
        for partition, mark in zip(row, of_frame, strict=True)
    }
