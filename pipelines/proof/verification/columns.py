"""The columns of the table that hold the values of a range's records.

In: the configurations of the range, the current mapping of the file, and the table's columns. If the table no longer has a column, it is
found under its new name if the file maps its field to a column that was not mapped before. No record shows whether such a column was
renamed, or dropped and recreated; its values do.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from pipelines.config import PipelineConfig
from pipelines.config.sinks import ERROR_FIELD
from pipelines.connectors.sinks import TableColumn
from pipelines.process.program import Program
from pipelines.process.steps.mapping import MappedColumn
from pipelines.proof.report import Finding
from pipelines.proof.verification.reference import compared_columns
from pipelines.proof.verification.span import History
from pipelines.proof.verification.steps import Column
from pipelines.protocol.positions import ORDINAL_BITS
from pipelines.types.columns import parse_type

_OTHERWISE = "the values of column {}: its mapping changed within the range"


@dataclass
class ColumnChoice:
    """Columns whose values are compared, faults of the table's columns, values that are left out, and values that the table lost.

    `lost`: by the reason, values that the table has no more, with the versions under which their rows were made.
    """

    columns: list[Column] = field(default_factory=list)
    faults: dict[str, Finding] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    lost: dict[str, list[str]] = field(default_factory=dict)


def choose_columns(history: History, configs: Mapping[str, Program], file: PipelineConfig, actual: Sequence[TableColumn]) -> ColumnChoice:
    """Decide on the columns for all configurations of `history`, which has at least one plan."""
    versions = list(dict.fromkeys(plan.version for plan in history.plans))
    now = {entry.column_name: (entry.name, entry.column_type) for entry in file.sink.mapping}
    types = {column.name: column.type for column in actual}
    last = history.plans[-1].version
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
            target = name if name in types else None if name in now else _renamed(source, mapping, now, types)
            if target is None and name in now:
                choice.faults[name] = _fault(name, kind, None)
            elif target is None:
                reason = f"the values of column {name}: neither the table nor the file has it now, and its new name is unknown"
                choice.lost.setdefault(reason, []).append(version)
            elif _same_values(kind, types[target]):
                names.setdefault(target, {})[version] = name
            elif version == last and target in now and _base(now[target][1]) == _base(kind):
                choice.faults[target] = _fault(target, kind, types[target])
            else:
                choice.left_out[target] = _OTHERWISE.format(target)
    for target, by_version in names.items():
        if target not in choice.faults and target not in choice.left_out:
            _compare(choice, history, configs, target, by_version)
    return choice


def _compare(choice: ColumnChoice, history: History, configs: Mapping[str, Program], target: str, by_version: Mapping[str, str]) -> None:
    """Add the column `target` to the compared columns, or to the values left out. `by_version`: the column's name in each version."""
    columns = [_column(configs[version], name) for version, name in by_version.items()]
    if None in columns:
        choice.left_out[target] = f"the values of column {target}: ClickHouse may rewrite JSON"
        return
    kinds = {(column.type, column.has_default) for column in columns if column is not None}
    if len(kinds) > 1 or len(by_version) < len({plan.version for plan in history.plans}):
        choice.left_out[target] = _OTHERWISE.format(target)
        return
    ((kind, has_default),) = kinds
    former = tuple(sorted({*by_version.values()} - {target}))
    if former and any(configs[version].join for version in by_version):
        # Under which configuration a row was made is known by its cause, which the table does not have.
        choice.left_out[target] = _OTHERWISE.format(target)
        return
    before = [plan.to for plan in history.plans if by_version[plan.version] != target]
    since = before[-1] + 1 << ORDINAL_BITS if before else 0
    choice.columns.append(Column(f"v{len(choice.columns)}", target, kind, has_default, former, since))


def _column(config: Program, name: str) -> Column | None:
    return next((column for column in compared_columns(config) if column.name == name), None)


def _renamed(source: str, mapping: Sequence[MappedColumn], now: Mapping[str, tuple[str, str]], types: Mapping[str, str]) -> str | None:
    """Return the only column of the field that was not mapped before, if exactly one column of the field is missing."""
    mapped = {entry.name: entry.field for entry in mapping}
    missing = [name for name, of in mapped.items() if of == source and name not in types]
    new = [name for name, (of, _) in now.items() if of == source and name in types and name not in mapped]
    return new[0] if len(missing) == len(new) == 1 else None


def _base(kind: str) -> str:
    return str(replace(parse_type(kind), nullable=False, low_cardinality=False))


def _fault(name: str, declared: str, actual: str | None) -> Finding:
    example = {"expected": declared, "found": actual or "no such column"}
    return Finding("schema", "different" if actual else "missing", 1, name, [example])


def _same_values(declared: str, actual: str) -> bool:
    """Return whether the types have the same values; LowCardinality changes no value."""
    if declared == actual:
        return True
    try:
        plain = [str(parse_type(text)).replace("LowCardinality(String)", "String") for text in (declared, actual)]
    except ValueError:
        return False
    return plain[0] == plain[1]
