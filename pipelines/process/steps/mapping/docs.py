"""docs/types.md: the prose of page.md, and the matrix of types. `python -m pipelines.process.steps.mapping.docs` writes it."""

import sys
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path

from pipelines.process.steps.mapping.columns import targets_of
from pipelines.process.steps.mapping.matrix import COLUMNS, FORMS, Form, matrix
from pipelines.types.columns import INTEGER_BITS, INTERVALS
from pipelines.types.fields import SOURCE_TYPES
from pipelines.types.time_formats import DIRECTIVES

TARGET = Path("docs/types.md")

_PROSE = (Path(__file__).parent / "page.md").read_text(encoding="utf-8")
_RANGES = {"Int8 to Int256": tuple(name for name in INTEGER_BITS if name[0] == "I")}
_RANGES |= {"UInt8 to UInt256": tuple(name for name in INTEGER_BITS if name[0] == "U"), "IntervalNanosecond to IntervalYear": INTERVALS}


def source_groups() -> list[tuple[str, ...]]:
    """Return the source types that can become the same column types, together."""
    return [tuple(group) for _, group in groupby(SOURCE_TYPES, targets_of)]


def named(names: Sequence[str]) -> str:
    """Name types in the order of the page; those of integers and intervals as ranges."""
    left, found = list(names), []
    for label, members in _RANGES.items():
        if set(members) <= set(left):
            found.append((left.index(members[0]), label))
            left = [name for name in left if name not in members[1:]]
    labels = {members[0]: label for label, members in _RANGES.items() if any(label == one for _, one in found)}
    return ", ".join(labels.get(name, name) for name in left)


def render() -> str:
    """Render the whole page as Markdown."""
    # Raises if a pair has no form: the page names every pair of the code.
    matrix()
    return "\n".join([_PROSE, *_grid(), "", *_directives(), "", "## Forms", "", *_forms(), ""])


def _grid() -> Iterator[str]:
    groups = source_groups()
    yield from ("## What can become what", "", f"| Column | {' | '.join(', '.join(group) for group in groups)} |")
    yield f"|{'---|' * (len(groups) + 1)}"
    for row, columns in _rows():
        cells = ["yes" if columns[0] in targets_of(group[0]) else "" for group in groups]
        yield f"| {row} | {' | '.join(cells)} |"


def _rows() -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the rows of the grid: column types that the same source types can become."""
    for _, found in groupby(COLUMNS, lambda column: tuple(column in targets_of(source) for source in SOURCE_TYPES)):
        columns = tuple(found)
        yield named(columns), columns


def _directives() -> Iterator[str]:
    yield from ("## Directives of a format", "", "| | |", "|---|---|")
    yield from (f"| `{directive}` | {meaning} |" for directive, meaning in DIRECTIVES.items())


def _forms() -> Iterator[str]:
    yield from ("| Field | Column | Form of the value | Example | Becomes | Lost |", "|---|---|---|---|---|---|")
    yield from map(_form, FORMS)


def _form(form: Form) -> str:
    example = f"`{form.example}`" if form.example else ""
    if form.notation:
        example += f", {'format' if '%' in form.notation else 'unit'} `{form.notation}`"
    cells = (", ".join(form.sources), named(form.columns), form.text, example, f"`{form.stored}`" if form.stored else "", form.lost)
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def main() -> None:
    """Write the page to docs/types.md under the working directory."""
    TARGET.write_text(render(), encoding="utf-8")
    sys.stdout.write(f"{TARGET}\n")


if __name__ == "__main__":
    main()
