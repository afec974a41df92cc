"""A dedup of each side before a join: the rows are those of the first records of their keys, on one process or on several."""

import json
import random
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pyarrow as pa
import pytest
from support.leg_case import NAMES, LegCase
from support.programs import first_of
from support.shared_case import Shared, outcome

from pipelines.errors import HaltError
from pipelines.process.computed import stored
from pipelines.process.program import RELEASE, Lane, Program
from pipelines.process.steps import Context, Step
from pipelines.process.steps.dedup import Dedup
from pipelines.process.steps.filter import Filter
from pipelines.process.steps.join import Join, JoinedField, JoinSide
from pipelines.process.steps.mapping import MappedColumn, MapToTable, MapToTables
from pipelines.process.steps.parse import Parse
from pipelines.protocol.records import POSITION_COLUMNS, StageOutput, decode_frame

SECOND = 1_000_000
WINDOWS = (8 * SECOND, 20 * SECOND)
COPIES = (3 * SECOND, 5 * SECOND)
BUCKETS = 12


def program(copies: Sequence[int | None] = COPIES, behind: Sequence[Step] = (), **of_dedup: Any) -> Program:
    """Left records (id, who, v) and right ones (id, who, name), joined by `who`; copies have one `id`."""
    left = JoinSide("s", ("who",), (JoinedField("id", "id", "int"), JoinedField("v", "v", "string")), WINDOWS[0])
    right = JoinSide("r", ("who",), (JoinedField("name", "name", "string"),), WINDOWS[1])
    lanes = []
    for source, text, window_us in zip(("s", "r"), ("v", "name"), copies, strict=True):
        own = (first_of("id", window_us, **of_dedup), *behind) if window_us else behind
        lanes.append(Lane(source, source, (Parse((("id", "int"), ("who", "int"), (text, "string"))), *own)))
    columns = (("id", "id", "Int64", False), ("v", "v", "String", False), ("name", "name", "Nullable(String)", False))
    mapping = MapToTable(tuple(MappedColumn(*column) for column in columns), "db", "t", tuple(POSITION_COLUMNS))
    return Program(RELEASE, BUCKETS, tuple(lanes), (Join(left, right, "drop"), MapToTables((mapping,))))


def play(case: LegCase, seed: int) -> list[tuple[int, str, dict[str, Any]]]:
    """Send batches of both sources in turn, with copies of earlier ids; return (arrival, source, record) in the order of raw."""
    some, sent = random.Random(seed), []
    for number in range(60):
        source = some.choice("ssr")
        batch: list[dict[str, Any]] = [
            {"id": some.randrange(30), "who": some.randrange(8), "v" if source == "s" else "name": f"{number}.{at}"} for at in range(6)
        ]
        case.send([json.dumps(record).encode() for record in batch], source)
        # The clock goes on before each batch.
        sent += [((number + 1) * SECOND // 4, source, record) for record in batch]
        if number % 7 == 6:
            case.go_on()
    case.go_on()
    return sent


def rows_of(case: LegCase) -> list[tuple[int, str, str]]:
    """(id, v, name) of every row on out, sorted."""
    frames = [decode_frame(message.payload).to_pylist() for message in case.log.messages(NAMES.stream("out"))]
    return sorted((row["id"], row["v"], row["name"]) for frame in frames for row in frame)


def expected(sent: Sequence[tuple[int, str, dict[str, Any]]], copies: Sequence[int | None]) -> tuple[list[tuple[int, str, str]], int]:
    """The rows, and the number of copies, record by record."""
    firsts: dict[tuple[str, int], int] = {}
    windows = dict(zip("sr", copies, strict=True))
    newest: dict[int, tuple[int, str]] = {}
    waiting: dict[int, list[tuple[int, int, str]]] = {}
    rows, dropped = [], 0
    for at, source, record in sent:
        window, key = windows[source], (source, record["id"])
        if window and key in firsts and at - firsts[key] < window:
            dropped += 1
            continue
        firsts[key] = at
        who = record["who"]
        if source == "r":
            rows += [(one, v, record["name"]) for since, one, v in waiting.pop(who, []) if at < since + WINDOWS[0]]
            newest[who] = at, record["name"]
        elif who in newest and at < newest[who][0] + WINDOWS[1]:
            rows.append((record["id"], record["v"], newest[who][1]))
        else:
            waiting.setdefault(who, []).append((at, record["id"], record["v"]))
    return sorted(rows), dropped


Played = tuple[LegCase, list[tuple[int, str, dict[str, Any]]]]


@pytest.fixture(scope="module")
def played(memory: Path) -> Callable[..., Played]:
    """A case in one process with what was sent, by seed and windows; nobody goes on with it."""

    @cache
    def one(seed: int, copies: Sequence[int | None] = COPIES) -> Played:
        case = LegCase(Path(mkdtemp(dir=memory)), BUCKETS, stages=program(copies))
        return case, play(case, seed)

    return one


@pytest.mark.parametrize(
    ("seed", "copies"),
    [(0, COPIES), (1, COPIES), (2, COPIES), (0, (3 * SECOND, None)), (1, (None, 5 * SECOND))],
    ids=["both, 0", "both, 1", "both, 2", "left, 0", "right, 1"],
)
def test_first_records_of_their_keys_are_joined(played: Callable[..., Played], seed: int, copies: Sequence[int | None]) -> None:
    case, sent = played(seed, copies)
    rows, dropped = expected(sent, copies)
    assert rows_of(case) == rows
    assert outcome(case)["totals"]["duplicates"] == dropped > 20


def test_a_copy_that_another_join_key_has_is_a_copy(tmp_path: Path) -> None:
    case = LegCase(tmp_path, BUCKETS, stages=program())
    case.send([b'{"id": 1, "who": 1, "name": "one"}', b'{"id": 2, "who": 2, "name": "two"}'], "r")
    case.send([b'{"id": 7, "who": 1, "v": "first"}', b'{"id": 7, "who": 2, "v": "copy"}'])
    case.go_on()
    assert rows_of(case) == [(7, "first", "one")]


def test_a_record_without_a_join_key_is_no_first_of_its_key(tmp_path: Path) -> None:
    case = LegCase(tmp_path, BUCKETS, stages=program())
    case.send([b'{"id": 1, "who": 1, "name": "one"}'], "r")
    case.send([b'{"id": 7, "who": null, "v": "rejected"}', b'{"id": 7, "who": 1, "v": "second"}'])
    case.go_on()
    assert rows_of(case) == [(7, "second", "one")]


def test_several_processes_find_the_same_copies(played: Callable[..., Played], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alone, sent = played(0, COPIES)
    shared = Shared(tmp_path, (), monkeypatch, stages=program())
    assert play(shared, 0) == sent
    assert outcome(shared) == outcome(alone)
    assert shared.process.status.lane_parts > 20
    assert shared.files() == shared.listed()


def test_a_plan_that_is_done_again_finds_the_same_copies(played: Callable[..., Played], tmp_path: Path) -> None:
    (once, sent), again = played(1, COPIES), LegCase(tmp_path, BUCKETS, stages=program())
    execute = again.process.execute

    def twice(plan: Any) -> Any:
        execute(plan)
        again.forget_stores()
        return execute(plan)

    again.process.execute = twice  # type: ignore[method-assign]
    assert play(again, 1) == sent
    assert outcome(again) == outcome(once)
    assert again.files() == again.listed()


def send_a_record_that_ends_the_mapping(case: LegCase, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twelve pairs, each in a portion of its own behind the join, and a copy of the first left record under another key of the join."""
    apply = MapToTables.apply

    def ending(self: MapToTables, context: Context, rows: pa.Table) -> StageOutput:
        if "venom" in rows.column("v").to_pylist():
            raise ZeroDivisionError("a value of the row")
        return apply(self, context, rows)

    monkeypatch.setattr(MapToTables, "apply", ending)
    monkeypatch.setattr("pipelines.process.joining.GATHERED_ROWS", 1)
    case.send([b'{"id": %d, "who": %d, "name": "n"}' % (who, who) for who in range(12)], "r")
    lefts = [b'{"id": %d, "who": %d, "v": "v"}' % (who, who) for who in range(12) if who != 5]
    case.send([b'{"id": 5, "who": 5, "v": "venom"}', b'{"id": 5, "who": 2, "v": "copy"}', *lefts])
    case.go_on()


@pytest.mark.parametrize("copies", [(None, None), (None, 5 * SECOND)], ids=["none", "right"])
def test_a_record_is_decided_behind_rows_of_other_buckets(
    copies: Sequence[int | None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = LegCase(tmp_path, BUCKETS, stages=program(copies))
    send_a_record_that_ends_the_mapping(case, monkeypatch)
    assert rows_of(case) == sorted([(5, "copy", "n"), *((who, "v", "n") for who in range(12) if who != 5)])
    (letters,) = outcome(case)["dlq"].values()
    assert [code for _, _, code in letters] == ["internal_error"]


def test_a_record_with_copies_is_not_decided_behind_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The plan would leave it out before the dedup, and the row of its copy may belong before rows that are written."""
    case = LegCase(tmp_path, BUCKETS, stages=program((3 * SECOND, None)))
    with pytest.raises(HaltError, match="an earlier attempt has passed it"):
        send_a_record_that_ends_the_mapping(case, monkeypatch)


@pytest.mark.parametrize(
    ("copies", "behind", "more", "message"),
    [
        (COPIES, (), {"keeps": True}, "keeps no copies"),
        (COPIES, (), {"time_field": "id"}, "compares arrivals"),
        (COPIES, (Filter(stored("who > 1", {"who": "int"}, None, "bool")),), {}, "must be before the dedup"),
    ],
)
def test_what_a_dedup_before_a_join_cannot_do_is_refused(
    copies: Sequence[int | None], behind: Sequence[Step], more: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        program(copies, behind, **more)


def test_a_program_with_dedups_before_a_join_is_read_back() -> None:
    made = program()
    assert Program.decode(json.loads(made.encode())) == made
    assert {is_right: step.window_us for is_right, step in made.side_dedups.items()} == {False: COPIES[0], True: COPIES[1]}
    assert made.stores == ("join-right", "join-left", "dedup-left", "dedup-right")
    assert isinstance(made.lanes[0].dedup, Dedup)
