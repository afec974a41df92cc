"""Recording: the expectations of cases, from what the program makes of their records, written into the text of the file.

Only expectations are written: every other character of a YAML file stays, comments included. A file of JSON is written anew.
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from pipelines.config import PipelineConfig
from pipelines.config.spans import end_of, line_end, line_start
from pipelines.config.text import read_tree
from pipelines.errors import HaltError
from pipelines.preview.cases import is_equal, rows_by_sink
from pipelines.preview.run import REJECTED, Preview
from pipelines.preview.trial import DROPPED, DUPLICATE
from pipelines.process.program import Program
from pipelines.protocol.records import POSITION_COLUMNS

_LONG = 10**9
"""A width that breaks no line."""
Expectation = dict[str, Any]


def expectation_of(found: Preview, program: Program, config: PipelineConfig) -> Expectation:
    """Return what must become of the records, as `cases.Expected` reads it; a value that no file can hold is left out of its row."""
    by_sink = {sink: [_recorded(row) for row in rows] for sink, rows in rows_by_sink(found, program, config).items()}
    rows = by_sink if len(by_sink) > 1 else next(iter(by_sink.values()))
    rejected = [record.last for record in found.records if record.last.outcome == REJECTED]
    causes = [{"stage": seen.stage, "code": seen.code, **({"field": seen.column} if seen.column else {})} for seen in rejected]
    counts: Counter[str] = found.outcomes()
    named = {"dropped": counts[DROPPED], "duplicates": counts[DUPLICATE]}
    return {"rows": rows, **({"rejected": causes} if causes else {}), **{name: count for name, count in named.items() if count}}


def _recorded(row: Mapping[str, Any]) -> dict[str, Any]:
    plain = {name: _plain(value) for name, value in row.items() if name not in POSITION_COLUMNS}
    return {name: value for name, value in plain.items() if is_equal(row[name], _read_back(value))}


def _read_back(value: Any) -> Any:
    """Return a value as a file gives it back; a number of very many digits, for one, comes back as text."""
    return read_tree(f"value: {_flow(value)}", "a value")[0]["value"]


def _plain(value: Any) -> Any:
    """Return a value of a row as a case names it."""
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    return str(value) if isinstance(value, Decimal | date) else value


def with_expectations(path: Path, text: str, expectations: Mapping[int, Expectation]) -> str:
    """Return the text of a file of cases with these expectations, by the index of the case.

    An expectation that the file has is replaced, with the comments in it. Raise HaltError if the text cannot be edited without a change
    of another part.
    """
    tree = read_tree(text, str(path))[0]
    wanted = {**tree, "tests": [{**case, **_of(expectations, index)} for index, case in enumerate(tree["tests"])]}
    try:
        json.loads(text)
    except ValueError:
        edited = _edited(text, expectations)
    else:
        return json.dumps(wanted, indent=2, ensure_ascii=False) + "\n"
    if _tree_of(path, edited) != wanted:
        raise HaltError(
            f"recording the cases of {path}: their text cannot be edited alone, perhaps for an anchor or an alias around a whole case; "
            "nothing was written. Write the expectation by hand"
        )
    return edited


def _of(expectations: Mapping[int, Expectation], index: int) -> dict[str, Any]:
    return {"expect": expectations[index]} if index in expectations else {}


def _tree_of(path: Path, text: str) -> Any:
    tree, faults = read_tree(text, str(path))
    return None if faults else tree


class _Edit(NamedTuple):
    """Text that replaces what stands from `start` to `end`, exclusive."""

    start: int
    end: int
    text: str


def _edited(text: str, expectations: Mapping[int, Expectation]) -> str:
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    assert isinstance(root, yaml.MappingNode)
    cases = next(value.value for key, value in root.value if key.value == "tests")
    edits = [_edit(text, cases[index], expectation) for index, expectation in expectations.items()]
    for edit in sorted(edits, reverse=True):
        text = text[: edit.start] + edit.text + text[edit.end :]
    return text


def _edit(text: str, case: yaml.MappingNode, expectation: Expectation) -> _Edit:
    present = next(((key, value) for key, value in case.value if key.value == "expect"), None)
    if case.flow_style:
        written = "expect: " + _flow(expectation)
        if present:
            return _Edit(present[0].start_mark.index, present[1].end_mark.index, written)
        end = case.end_mark.index - 1
        return _Edit(end, end, written if text[:end].rstrip().endswith(",") else f", {written}")
    indent = " " * case.value[0][0].start_mark.column
    lines = [f"{indent}{line}\n" for line in _block(expectation)]
    if present:
        return _Edit(line_start(text, present[0].start_mark.index), line_end(text, end_of(present[1])), "".join(lines))
    end = line_end(text, max(end_of(value) for _, value in case.value))
    return _Edit(end, end, ("" if text[end - 1 : end] == "\n" else "\n") + "".join(lines))


def _block(expectation: Expectation) -> Iterable[str]:
    """Yield the lines of an expectation: a line for each row and each dead letter."""
    yield "expect:"
    for name, value in expectation.items():
        if isinstance(value, list) and value:
            yield f"  {name}:"
            yield from (f"    - {_flow(item)}" for item in value)
        else:
            yield f"  {name}: {_flow(value)}"


def _flow(value: Any) -> str:
    written: str = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, allow_unicode=True, width=_LONG)
    return written.removesuffix("\n").removesuffix("\n...")
