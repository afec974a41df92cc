"""Random histories of edits: columns are added, dropped, renamed, retyped and put back while rows wait, the sink stops at any step.

A model of its own says what the table and the dead letters must hold: rows are dicts, an ALTER changes them, a row that waits keeps the
columns of the file that it was made under. `TALLYFLOW_EDIT_HISTORIES` (default 6) says how many are played, the same on every machine;
`TALLYFLOW_EDIT_SEED` plays one.
"""

import json
import os
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import pytest
from support.edited_case import Document, alter, stopped_at
from support.pipeline_case import PipelineCase, Position

from pipelines.errors import HaltError

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("brief_inserts")]

HISTORIES = int(os.environ.get("TALLYFLOW_EDIT_HISTORIES", "6"))
SEEDS = [int(os.environ["TALLYFLOW_EDIT_SEED"])] if "TALLYFLOW_EDIT_SEED" in os.environ else list(range(HISTORIES))
STEPS = 14
INT32 = 2**31
TYPES = {"n": ["Int64", "Int32", "Nullable(Int64)"], "s": ["String", "Nullable(String)", "LowCardinality(String)"]}
KEEPS = {("Int32", "Int64"), ("Int64", "Nullable(Int64)"), ("Int32", "Nullable(Int64)"), *((a, b) for a in TYPES["s"] for b in TYPES["s"])}
"""Retypings that a stored row survives as it is, a null aside."""
STOPS = ["leg.after-plan", "sink.before-insert", "sink.after-insert"]
Row = dict[str, Any]


@dataclass(frozen=True)
class Column:
    source: str
    kind: str

    @property
    def nullable(self) -> bool:
        return self.kind.startswith("Nullable")

    @property
    def empty(self) -> Any:
        """What a row has that was there, or is inserted, without the column."""
        return None if self.nullable else {"n": 0, "s": ""}[self.source]


Columns = dict[str, Column]


def value(record: Row, column: Column) -> tuple[Any, bool]:
    """What becomes of the record's field, and whether it has a place in the column."""
    found = record[column.source]
    if found is None:
        return None, column.nullable
    return found, not ("Int32" in column.kind and not -INT32 <= found < INT32)


@dataclass
class Model:
    """The table, the rows that wait for it (each with the columns that it was made for), and the positions of the dead letters."""

    columns: Columns
    table: dict[Position, Row] = field(default_factory=dict)
    waiting: dict[Position, tuple[Row, Columns]] = field(default_factory=dict)
    raw: dict[Position, Row] = field(default_factory=dict)
    rejected: set[Position] = field(default_factory=set)
    abandoned: dict[Position, Row] = field(default_factory=dict)
    records: dict[Position, Row] = field(default_factory=dict)
    plan: list[Position] = field(default_factory=list)
    """Of the rows that wait, those of the sink's open plan; some that were sent may be in the table."""

    def process(self, mapped: Columns) -> None:
        for at, record in self.raw.items():
            made = {name: value(record, column) for name, column in mapped.items()}
            if all(fits for _, fits in made.values()):
                self.waiting[at] = ({name: found for name, (found, _) in made.items()}, dict(mapped))
            else:
                self.rejected.add(at)
        self.raw.clear()

    def is_deliverable(self) -> bool:
        for row, made_for in self.waiting.values():
            for name, column in made_for.items():
                now = self.columns.get(name)
                if now is None or (now.kind != column.kind and (column.kind, now.kind) not in KEEPS):
                    return False
                if row[name] is None and not now.nullable:
                    return False
        return True

    def land(self, places: Iterable[Position]) -> None:
        """Rows come into the table, once."""
        for at in places:
            if at not in self.table:
                row = self.waiting[at][0]
                self.table[at] = {name: row.get(name, column.empty) for name, column in self.columns.items()}

    def deliver(self, places: Iterable[Position]) -> None:
        """Rows come into the table and are confirmed."""
        for at in list(places):
            self.land([at])
            del self.waiting[at]
        self.plan = [at for at in self.plan if at in self.waiting]

    def give_up(self) -> int:
        """How many: what has landed stays."""
        lost = [at for at in self.waiting if at not in self.table]
        self.abandoned |= {at: self.records[at] for at in lost}
        self.waiting.clear()
        self.plan.clear()
        return len(lost)

    def next_plan(self) -> list[Position]:
        """The rows at the front that were made under one mapping."""
        groups = groupby(self.waiting, lambda at: [*self.waiting[at][1].items()])
        return next((list(group) for _, group in groups), [])

    def alter(self, name: str, column: Column | None, new_name: str = "") -> None:
        """Adds, drops (None), retypes or renames a column of the table, as its stored rows see it."""
        before = self.columns.pop(name, None)
        for row in self.table.values():
            found = row.pop(name) if before else None
            if column is not None:
                row[new_name or name] = _converted(found, before, column) if before else column.empty
        if column is not None:
            self.columns[new_name or name] = column


def _converted(found: Any, before: Column, now: Column) -> Any:
    if "Int32" in now.kind and found is not None:
        return (found + INT32) % (2 * INT32) - INT32
    return found


class History:
    """One seed's story, told to the real pipeline and to the model."""

    def __init__(self, case: PipelineCase, seed: int) -> None:
        self.case, self.rng = case, random.Random(seed)
        self.model = Model({"n": Column("n", "Int64"), "s": Column("s", "Nullable(String)")})
        self.mapped: Columns = dict(self.model.columns)
        self.undo: list[Callable[[], None]] = []
        self.sent = self.added = 0
        self.story: list[str] = []

    def write_file(self) -> None:
        def change(document: Document) -> None:
            document["sources"][0]["schema_fields"] = [
                {"name": "id", "type": "int64"}, {"name": "n", "type": "int64"}, {"name": "s", "type": "string"}
            ]  # fmt: skip
            document["sink"]["mapping"] = [{"name": "id", "column_name": "id", "column_type": "Int64"}] + [
                {"name": column.source, "column_name": name, "column_type": column.kind} for name, column in self.mapped.items()
            ]

        self.case.write_file(change)

    def play(self) -> None:
        self.case.create_topic(1)
        self.write_file()
        self.case.warm_run()
        for _ in range(STEPS):
            step = self.rng.choice([self.send, self.send, self.edit, self.edit, self.stop, self.stop, self.drain, self.put_back])
            step()
        self.drain()
        if self.model.abandoned and self.rng.random() < 0.7:
            self.reprocess()
        self.check()

    def send(self) -> None:
        """Records that process has done when this ends."""
        records = [
            {"id": number, "n": self.rng.choice([1, -7, 3_000_000_000, None]), "s": self.rng.choice(["x", "", None])}
            for number in range(self.sent, self.sent + self.rng.randint(1, 9))
        ]
        self.story.append(f"send {len(records)} with {list(self.mapped)}")
        self.case.send([json.dumps(record).encode() for record in records], partitions=1)
        found = {(0, self.sent + number): record for number, record in enumerate(records)}
        self.sent += len(records)
        self.model.raw |= found
        self.model.records |= found
        self.case.warm_run(legs=("ingest", "process"))
        self.model.process(self.mapped)

    def edit(self) -> None:
        """One change of the table and of the file; the way back is kept."""
        before = dict(self.mapped)
        name = self.rng.choice(list(self.mapped)) if self.mapped else ""
        kind = self.rng.choice(["add", "drop", "rename", "retype", "leave"]) if name else "add"
        self.story.append(f"{kind} {name}")
        getattr(self, f"_{kind}")(name)
        if self.undo and self.mapped != before:
            steps = self.undo[-1]

            def back() -> None:
                steps()
                self.mapped = before

            self.undo[-1] = back
        self.write_file()

    def _alter(self, text: str, name: str, column: Column | None, new_name: str = "") -> None:
        alter(self.case, f"{text} SETTINGS mutations_sync = 2, alter_sync = 2")
        self.model.alter(name, column, new_name)

    def _add(self, _: str) -> None:
        self.added += 1
        name, source = f"added_{self.added}", self.rng.choice(["n", "s"])
        column = Column(source, self.rng.choice(TYPES[source]))
        self._alter(f"ADD COLUMN {name} {column.kind}", name, column)
        self.mapped = {**self.mapped, name: column}
        self.undo.append(lambda: self._alter(f"DROP COLUMN {name}", name, None))

    def _drop(self, name: str) -> None:
        column = self.model.columns[name]
        self._alter(f"DROP COLUMN {name}", name, None)
        self.mapped = {one: found for one, found in self.mapped.items() if one != name}
        self.undo.append(lambda: self._alter(f"ADD COLUMN {name} {column.kind}", name, column))

    def _leave(self, name: str) -> None:
        """The column leaves the mapping and stays in the table."""
        self.mapped = {one: found for one, found in self.mapped.items() if one != name}
        self.undo.append(lambda: None)

    def _rename(self, name: str) -> None:
        self.added += 1
        column, new = self.model.columns[name], f"renamed_{self.added}"
        self._alter(f"RENAME COLUMN {name} TO {new}", name, column, new)
        self.mapped = {new if one == name else one: found for one, found in self.mapped.items()}
        self.undo.append(lambda: self._alter(f"RENAME COLUMN {new} TO {name}", new, column, name))

    def _retype(self, name: str) -> None:
        before = self.model.columns[name]
        others = [kind for kind in TYPES[before.source] if kind != before.kind and not (before.nullable and "Nullable" not in kind)]
        if not others:
            self._rename(name)
            return
        column = Column(before.source, self.rng.choice(others))
        self._alter(f"MODIFY COLUMN {name} {column.kind}", name, column)
        self.mapped = {**self.mapped, name: column}
        if column.nullable and not before.nullable:
            # ClickHouse wants to be told what a null becomes on the way back: there is none.
            self.undo.clear()
            return
        self.undo.append(lambda: self._alter(f"MODIFY COLUMN {name} {before.kind}", name, before))

    def put_back(self) -> None:
        if self.undo:
            self.story.append("put back")
            self.undo.pop()()
            self.write_file()

    def drain(self) -> None:
        """All that waits arrives; or it is refused, and is put back until it fits, or given up."""
        self.story.append("drain")
        while not self._runs():
            if self.undo and self.rng.random() < 0.6:
                self.put_back()
            else:
                self._abandon()

    def _runs(self) -> bool:
        if not self.model.is_deliverable():
            with pytest.raises(HaltError, match="Nothing was started"):
                self.case.warm_run()
            return False
        self.case.warm_run()
        self.model.deliver(self.model.waiting)
        return True

    def _abandon(self) -> None:
        self.story.append("abandon")
        found = self.case.invoke(
            "plan", "abandon", str(self.case.file), "--leg", "sink", "--reason", "edited", "--waiting", "--yes", "--json"
        )
        assert found.exit_code == 0, found.output
        assert json.loads(found.stdout)["given_up"] == self.model.give_up()

    def stop(self) -> None:
        """The sink ends at a step of its own, with its plan open; its insert may be there or not."""
        if not self.model.waiting or not self.model.is_deliverable():
            return
        where = self.rng.choice(STOPS)
        self.story.append(f"stop at {where}")
        stopped_at(self.case, where)
        model = self.model
        if where == "leg.after-plan":
            model.deliver(list(model.plan))
        model.plan = model.plan or model.next_plan()
        if where == "sink.after-insert":
            model.land(model.plan)

    def reprocess(self) -> None:
        self.story.append("reprocess")
        assert self.case.invoke("dlq", "reprocess", str(self.case.file), "--stage", "sink").exit_code == 0
        self.model.raw, self.model.abandoned = self.model.abandoned, {}
        self.model.process(self.mapped)
        self.case.warm_run()
        self.model.deliver(self.model.waiting)

    def check(self) -> None:
        names = list(self.model.columns)
        listed = ", ".join(["_tf_partition", "_tf_offset", "id", *names])
        rows = self.case.client().query(f"SELECT {listed} FROM {self.case.table}").result_rows
        found = {(partition, offset): dict(zip(["id", *names], values, strict=True)) for partition, offset, *values in rows}
        assert len(found) == len(rows), self.story
        assert found == {at: {"id": at[1], **row} for at, row in self.model.table.items()}, self.story
        entered = self.case.entered()
        dead_letters = [one for one in self.case.dead_letters() if f"{one['_tf_sequence']}.{one['_tf_ordinal']}" not in entered]
        at = sorted((one["_tf_partition"], one["_tf_offset"]) for one in dead_letters)
        assert at == sorted([*self.model.rejected, *self.model.abandoned]), self.story
        assert json.loads(self.case.invoke("tally", str(self.case.file), "--json").stdout)["residue"] == 0
        audited = self.case.invoke("audit", str(self.case.file))
        assert audited.exit_code == 0, (audited.output, self.story)


@pytest.mark.parametrize("seed", SEEDS)
def test_what_waits_arrives_as_it_was_made_whatever_is_edited(case: PipelineCase, seed: int) -> None:
    history = History(case, seed)
    try:
        history.play()
    except BaseException:
        print(f"seed {seed}:", *history.story, sep="\n  ")
        raise
