"""The columns of the table that hold the values of a range's records.

In: the configurations of the range, the current mapping of the file, and the table's columns. Each row is compared with the value that the
mapping under which it was made calls for. If the table no longer has a column, it is found under its new name if the file maps its field to
a column that was not mapped before. No record shows whether such a column was renamed, or dropped and recreated; its values do.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pipelines.config import PipelineConfig
from pipelines.config.sinks import ERROR_FIELD
from pipelines.connectors.sinks import TableColumn
from pipelines.process.program import Program
from pipelines.process.steps.mapping import MappedColumn
from pipelines.proof.report import Finding
from pipelines.proof.verification.compared import Column, Stretch, default_of, widened
from pipelines.proof.verification.reference import compared_columns
from pipelines.proof.verification.span import History
from pipelines.protocol.positions import first_position, last_position
from pipelines.types.columns import ColumnType, parse_type, value_type

_WITHOUT = "the values of column {}: made under a mapping without it, and filled by "
_ANOTHER = "the values of column {}: made as {}, and the table has {} now"
_OF_A_JOIN = "the values of column {}: its mapping changed, and no row of a join shows under which one it was made"
_TWO_NAMES = "the values of column {}: its former name was mapped to another field meanwhile"


@dataclass
class ColumnChoice:
    """Columns whose values are compared, faults of the table's columns, values that are left out, and values that cannot be computed.

    `lost`: by the reason, values that the table has no more, or not as they were made, with the versions under which their rows were made.
    """

    columns: list[Column] = field(default_factory=list)
    faults: dict[str, Finding] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    lost: dict[str, list[str]] = field(default_factory=dict)


def choose_columns(
    history: History, configs: Mapping[str, Program], file: PipelineConfig, actual: Sequence[TableColumn], *, is_joined: bool
) -> ColumnChoice:
    """Decide on the columns for all configurations of the rows of `history`, which has at least one plan.

    `is_joined`: under which configuration a row was made is known by its cause, which the table does not have.
    """
    made = [version for *_, version in history.rows_made(0, history.plans[-1].to)]
    versions, last = list(dict.fromkeys(made)), made[-1]
    now = {entry.column_name: (entry.name, entry.column_type) for entry in file.sink.mapping}
    columns = {column.name: column for column in actual}
    choice = ColumnChoice()
    names: dict[str, dict[str, str]] = {}
    # The last one first: its order is the order of the columns.
    for version in sorted(versions, key=lambda one: one != last):
        mapping = configs[version].mapping.columns
        for entry in mapping:
            source, name, kind, *_ = entry
            if source == ERROR_FIELD and configs[version].mapping.refused_by:
                choice.left_out[name] = f"the values of column {name}: they are the server's own words"
                continue
            target = name if name in columns else None if name in now else _renamed(source, mapping, now, columns)
            if target is None and name in now:
                choice.faults[name] = _fault(name, kind, None)
            elif target is None:
                reason = f"the values of column {name}: neither the table nor the file has it now, and its new name is unknown"
                choice.lost.setdefault(reason, []).append(version)
            elif version == last and target in now and _is_fault(kind, now[target][1], columns[target].type):
                choice.faults[target] = _fault(target, kind, columns[target].type)
            else:
                names.setdefault(target, {})[version] = name
    for target, by_version in names.items():
        if target not in choice.faults and target not in choice.left_out:
            _compare(choice, history, {version: configs[version] for version in versions}, columns[target], by_version, is_joined)
    return choice


def _compare(
    choice: ColumnChoice,
    history: History,
    configs: Mapping[str, Program],
    actual: TableColumn,
    by_version: Mapping[str, str],
    is_joined: bool,
) -> None:
    """Add a column of the table to the compared columns, or to the values left out.

    `configs`: those of the history. `by_version`: the column's name in each version.
    """
    target, versions = actual.name, [*configs]
    made = {version: _column(configs[version], name) for version, name in by_version.items()}
    columns = {version: column for version, column in made.items() if column is not None}
    if len(columns) < len(made):
        choice.left_out[target] = f"the values of column {target}: ClickHouse may rewrite JSON"
        return
    is_own = {version: by_version.get(version) == target for version in versions}
    kinds = {column.type for column in columns.values()}
    if is_joined and not (all(is_own.values()) and len(kinds) == 1):
        choice.lost[_OF_A_JOIN.format(target)] = versions
        return
    former = tuple(sorted({*by_version.values()} - {target}))
    if any(entry.name in former for version in versions if version not in columns for entry in configs[version].mapping.columns):
        choice.lost[_TWO_NAMES.format(target)] = versions
        return
    kind = _kind(actual, list(columns.values()))
    unmapped = default_of(kind) if kind and not actual.default_kind else None
    unknown: set[str] = set()
    for version in versions:
        if reason := _why_unknown(actual, kind, columns.get(version), unmapped):
            choice.lost.setdefault(reason, []).append(version)
            unknown.add(version)
    if kind is None or unknown.issuperset(versions):
        return
    choice.columns.append(
        Column(
            f"v{len(choice.columns)}",
            target,
            kind,
            any(column.has_default for column in columns.values()),
            former,
            tuple(_doubtful(history, is_own)),
            tuple(_stretches(history, unknown)),
            unmapped or "NULL",
        )
    )


def _kind(actual: TableColumn, columns: Sequence[Column]) -> ColumnType | None:
    """Return the type in which a column is compared: one that rows were made for, if the table has its values; None if unknown."""
    own = next((column.type for column in columns if _same_values(str(column.type), actual.type)), None)
    if own is not None:
        return own
    try:
        return value_type(actual.type)
    except ValueError:
        return None


def _why_unknown(actual: TableColumn, kind: ColumnType | None, made: Column | None, unmapped: str | None) -> str:
    """Return why the values of rows cannot be computed; empty if they can. `made`: the column as their mapping has it, None without it."""
    if made is None:
        filled = "its DEFAULT" if actual.default_kind else "the default of its type"
        return "" if unmapped else _WITHOUT.format(actual.name) + filled
    had_default = made.has_default and not made.type.takes_null
    if kind is None or widened("", made.type, kind) is None or (had_default and kind.takes_null):
        return _ANOTHER.format(actual.name, made.type, actual.type)
    return ""


def _doubtful(history: History, is_own: Mapping[str, bool]) -> Iterator[Stretch]:
    """Yield where a column was not mapped under its own name, and what is before that if it was mapped again later."""
    was_own = is_broken = False
    for first, last, version in reversed(history.rows_made(0, history.plans[-1].to)):
        if not is_own[version]:
            is_broken |= was_own
        was_own |= is_own[version]
        if is_broken or not is_own[version]:
            yield first_position(first), last_position(last)


def _stretches(history: History, versions: set[str]) -> Iterator[Stretch]:
    for first, last, version in history.rows_made(0, history.plans[-1].to):
        if version in versions:
            yield first_position(first), last_position(last)


def _column(config: Program, name: str) -> Column | None:
    return next((column for column in compared_columns(config) if column.name == name), None)


def _renamed(source: str, mapping: Sequence[MappedColumn], now: Mapping[str, tuple[str, str]], columns: Mapping[str, object]) -> str | None:
    """Return the only column of the field that was not mapped before, if exactly one column of the field is missing."""
    mapped = {entry.name: entry.field for entry in mapping}
    missing = [name for name, of in mapped.items() if of == source and name not in columns]
    new = [name for name, (of, _) in now.items() if of == source and name in columns and name not in mapped]
    return new[0] if len(missing) == len(new) == 1 else None


def _is_fault(made: str, declared: str, actual: str) -> bool:
    """Return whether the table has another type than rows were made for, and than the file declares, though that was not edited."""
    return not _same_values(made, actual) and not _same_values(declared, actual) and _base(declared) == _base(made)


def _base(kind: str) -> str:
    return str(replace(parse_type(kind), nullable=False, low_cardinality=False))


def _fault(name: str, declared: str, actual: str | None) -> Finding:
    example = {"expected": declared, "found": actual or "no such column"}
    return Finding("schema", "different" if actual else "missing", 1, name, [example])


def _same_values(declared: str, actual: str) -> bool:
    """Return whether two types have the same values; LowCardinality changes no value."""
    if declared == actual:
        return True
    try:
        plain = [str(parse_type(text)).replace("LowCardinality(String)", "String") for text in (declared, actual)]
    except ValueError:
        return False
    return plain[0] == plain[1]
