"""Cases of a pipeline file, in `FILE.tests.yaml`: records, and what must become of them. Run by `tallyflow test`.

Only what a case names is compared. An expected row is compared by the columns that it names; the order of rows counts only if `ordered`.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field, ValidationError

from pipelines.config import PipelineConfig
from pipelines.config.base import Duration, Faults, Model, Text, Whole, repeated
from pipelines.config.faults import faults_of
from pipelines.config.load import read_text
from pipelines.config.source_ids import chosen_source
from pipelines.config.text import read_tree
from pipelines.errors import ConfigurationError, Fault
from pipelines.preview.given import Given, frames_of
from pipelines.preview.joined import UNMATCHED, WAITING
from pipelines.preview.readable import readable_rows
from pipelines.preview.run import REJECTED, ROW, Preview, Seen, preview
from pipelines.preview.tables import GivenRows, with_tables
from pipelines.preview.trial import DROPPED, DUPLICATE
from pipelines.process.program import Program
from pipelines.protocol.topology import LegId

FIRST_ARRIVAL = datetime(2026, 1, 1, tzinfo=UTC)
"""Arrival of the records before any that has its own."""


def _instant(text: str) -> str:
    if _aware(text) is None:
        raise ValueError("must be an instant such as 2026-01-31T12:00:00Z")
    return text


def _aware(text: str) -> datetime | None:
    """Return the instant of an ISO 8601 text, UTC if it names no zone; None for other text."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


class Record(Model):
    """One record of a case."""

    value: Any = Field(description="The value: JSON, or text that is taken as it is. Null: a record without a value.")
    key: str | None = Field(default=None, description="Kafka's key.")
    headers: dict[str, str] = Field(default_factory=dict, description="Kafka's headers.")
    partition: Whole = Field(default=0, description="Kafka's partition.")
    source: Text | None = Field(default=None, description="The id of its source, if the pipeline has several.")
    at: Annotated[str, AfterValidator(_instant)] | None = Field(default=None, description="Arrival. Default: that of the record before.")
    after: Duration | None = Field(default=None, description="Time between the arrival of the record before and its own.")

    def faults(self) -> Faults:
        if self.at is not None and self.after is not None:
            yield ("after",), "at and after exclude each other"


class Rejected(Model):
    """A dead letter; the parts that are given are compared."""

    stage: Text | None = Field(default=None, description="The step that rejects it.")
    code: Text | None = Field(default=None, description="The code.")
    field_name: Text | None = Field(default=None, alias="field", description="The field or column.")

    def matches(self, seen: Seen) -> bool:
        """Return whether a rejected record ended as this says."""
        given = ((self.stage, seen.stage), (self.code, seen.code), (self.field_name, seen.column))
        return all(wanted in (None, found) for wanted, found in given)


ExpectedRows = tuple[dict[str, Any], ...]


class Expected(Model):
    """What becomes of the records of a case."""

    rows: ExpectedRows | dict[str, ExpectedRows] | None = Field(
        default=None, description="The rows, by the columns that are to be compared: of all tables, or by the id of their sink."
    )
    ordered: bool = Field(default=False, description="True if the rows must have this order.")
    rejected: tuple[Rejected, ...] | None = Field(default=None, description="The dead letters, in any order.")
    dropped: Whole | None = Field(default=None, description="The number of records that a filter drops.")
    duplicates: Whole | None = Field(default=None, description="The number of duplicates.")
    unmatched: Whole | None = Field(default=None, description="The number of left records that a join drops without a match.")
    waiting: Whole | None = Field(default=None, description="The number of left records that still wait in a join at the end.")


TableRows = dict[str, tuple[dict[str, Any], ...]]


class Case(Model):
    """One case."""

    name: Text = Field(description="What the case shows.")
    given: Annotated[tuple[Record, ...], Field(min_length=1)] = Field(description="The records, in the order of their arrival.")
    until: Duration | None = Field(default=None, description="Time that passes behind the last record, in which windows of a join end.")
    tables: TableRows = Field(default_factory=dict, description="Rows of look-up tables, by the table's name, for this case.")
    expect: Expected | None = Field(default=None, description="What must become of them. `tallyflow test --record` writes it.")


class CasesFile(Model):
    """A file of cases."""

    tests: Annotated[tuple[Case, ...], Field(min_length=1)] = Field(description="The cases.")
    tables: TableRows = Field(
        default_factory=dict,
        description="Rows of look-up tables, by the table's name, for all cases. A file beside the pipeline file is read without them.",
    )

    def faults(self) -> Faults:
        for index, name in repeated(case.name for case in self.tests):
            yield ("tests", index, "name"), f"the name {name!r} is given twice"


@dataclass(frozen=True)
class Result:
    """A case that was run. `differences`: one line each; none if it passed."""

    case: Case
    differences: list[str] = field(default_factory=list)


def cases_path(file: Path) -> Path:
    """Return the path of the cases beside a pipeline file: `orders.tests.yaml` for `orders.yaml`."""
    return file.with_suffix(".tests.yaml")


def load_cases(path: Path) -> CasesFile:
    """Load a file of cases. Raise ConfigurationError with every fault."""
    tree, faults = read_tree(read_text(path), str(path))
    try:
        cases = CasesFile.model_validate(tree)
    except ValidationError as error:
        faults += faults_of(error, tree, CasesFile)
    if faults:
        raise ConfigurationError(str(path), faults) from None
    return cases


def run_case(case: Case, program: Program, config: PipelineConfig, tables: Mapping[str, GivenRows] | None = None) -> Result:
    """Run one case through the program of a pipeline file; `tables`: rows for all cases. A case without an expectation fails.

    Raise ConfigurationError for a look-up table of which nothing gives the rows.
    """
    if case.expect is None:
        return Result(case, ["nothing is expected: write `expect`, or let --record write it"])
    found = preview_of(case, program, config, tables)
    rows = rows_by_sink(found, program, config)
    return Result(case, [*_row_differences(case.expect, rows), *_other_differences(case.expect, found)])


def preview_of(case: Case, program: Program, config: PipelineConfig, tables: Mapping[str, GivenRows] | None = None) -> Preview:
    """Return what becomes of the records of a case. Raise ConfigurationError for one that asks for what cannot be tried."""
    if case.until is not None and program.join is not None and program.join.is_timed:
        fault = Fault("until", "by event time windows end with records: leave it out, and give a later record of each source")
        raise ConfigurationError(f"case {case.name!r}", [fault])
    program = with_tables(program, config, {**(tables or {}), **case.tables}, offline=True)
    return preview(program, frames_of(_given(case, config), config.sources, case.until))


def _given(case: Case, config: PipelineConfig) -> Iterator[Given]:
    at = FIRST_ARRIVAL
    for record in case.given:
        at = _aware(record.at) or at if record.at else at + (record.after or timedelta(0))
        headers = tuple((name.encode(), value.encode()) for name, value in record.headers.items())
        key = record.key.encode() if record.key is not None else None
        source = chosen_source(config, record.source).source_id
        yield Given(_value(record.value), at, key, headers or None, record.partition, source)


def _value(value: Any) -> bytes | None:
    if value is None:
        return None
    return value.encode() if isinstance(value, str) else json.dumps(value, ensure_ascii=False).encode()


def rows_by_sink(found: Preview, program: Program, config: PipelineConfig) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of each table by the id of its sink, which is empty for the only one."""
    rows: dict[str, list[dict[str, Any]]] = {config.topology.file_id(leg): [] for leg in config.topology.sinks}
    for fields in [row for record in found.records if record.last.outcome == ROW for row in record.last.rows]:
        for table, row in readable_rows(fields, program):
            rows[config.topology.file_id(LegId.parse(table.leg))].append(row)
    return rows


def _row_differences(expected: Expected, rows: Mapping[str, Sequence[Mapping[str, Any]]]) -> Iterator[str]:
    if isinstance(expected.rows, tuple):
        yield from _differences(expected.rows, [row for of_sink in rows.values() for row in of_sink], expected.ordered)
    for sink, wanted in expected.rows.items() if isinstance(expected.rows, dict) else ():
        if sink not in rows:
            yield f"rows: there is no sink {sink!r}; the sinks are {', '.join(rows)}"
        else:
            yield from (f"{sink}: {difference}" for difference in _differences(wanted, rows[sink], expected.ordered))


def _differences(expected: ExpectedRows, rows: Sequence[Mapping[str, Any]], ordered: bool) -> Iterator[str]:
    unmatched = list(rows)
    # The most columns first, so that a row with few does not take the place of one with more.
    for wanted in expected if ordered else sorted(expected, key=len, reverse=True):
        among = unmatched[:1] if ordered else unmatched
        match = next((row for row in among if all(name in row and is_equal(row[name], value) for name, value in wanted.items())), None)
        if match is None:
            yield f"missing row: {_shown(wanted)}"
            if ordered:
                break
        else:
            unmatched.remove(match)
    named = {name for wanted in expected for name in wanted}
    for row in unmatched:
        yield f"unexpected row: {_shown({name: value for name, value in row.items() if name in named or not named})}"


def _other_differences(expected: Expected, found: Preview) -> Iterator[str]:
    outcomes = found.outcomes()
    for name, wanted, count in (
        ("dropped", expected.dropped, outcomes[DROPPED]),
        ("duplicates", expected.duplicates, outcomes[DUPLICATE]),
        ("unmatched", expected.unmatched, outcomes[UNMATCHED]),
        ("waiting", expected.waiting, outcomes[WAITING]),
    ):
        if wanted is not None and wanted != count:
            yield f"{name}: expected {wanted}, found {count}"
    rejected = [record.last for record in found.records if record.last.outcome == REJECTED]
    for wanted_letter in expected.rejected or ():
        match = next(filter(wanted_letter.matches, rejected), None)
        if match is None:
            yield f"missing dead letter: {_shown(wanted_letter.model_dump(by_alias=True, exclude_none=True))}"
        else:
            rejected.remove(match)
    yield from (f"unexpected dead letter: {seen.step}: {seen.code}: {seen.reason}" for seen in rejected)


def is_equal(found: Any, wanted: Any) -> bool:
    """Return whether a value of a row is the one that a case names: numbers by value, instants and dates by their text."""
    if isinstance(found, list | tuple):
        return isinstance(wanted, list) and len(found) == len(wanted) and all(map(is_equal, found, wanted))
    if isinstance(found, dict):
        return isinstance(wanted, dict) and found.keys() == wanted.keys() and all(is_equal(found[name], wanted[name]) for name in found)
    if isinstance(found, bytes):
        return isinstance(wanted, str) and bool(found == wanted.encode())
    if isinstance(found, Decimal):
        return not isinstance(wanted, bool) and bool(_decimal(wanted) == found)
    if isinstance(found, datetime):
        return isinstance(wanted, str) and bool(_aware(wanted) == found)
    if isinstance(found, date):
        return bool(str(found) == wanted)
    return bool(found == wanted) and isinstance(found, bool) == isinstance(wanted, bool)


def _decimal(value: Any) -> Decimal | None:
    try:
        return Decimal(str(value))
    except InvalidOperation:
        return None


def _shown(value: Any) -> str:
    return json.dumps(value, default=str, ensure_ascii=False)
