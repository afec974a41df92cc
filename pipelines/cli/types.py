"""The command that shows which field may become which column."""

from typing import Annotated

import typer
from rich.table import Table

from pipelines.cli.arguments import AsJson, out, print_json


def types(
    source: Annotated[str | None, typer.Argument(help="A source type such as string. Default: all.")] = None,
    column: Annotated[str | None, typer.Option("--column", help="A column type by its name, such as DateTime64. Default: all.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show which type of a field may become which type of a column, in what form, and what is lost. Connects to nothing."""
    from pipelines.process.steps.mapping.docs import named
    from pipelines.process.steps.mapping.matrix import COLUMNS, FORMS, matrix
    from pipelines.types.fields import SOURCE_TYPES

    if source is not None and source not in SOURCE_TYPES:
        raise typer.BadParameter(f"there is no source type {source!r}; known are {', '.join(SOURCE_TYPES)}")
    if column is not None and column not in COLUMNS:
        raise typer.BadParameter(f"there is no column type {column!r}; known are {', '.join(COLUMNS)}", param_hint="--column")
    if as_json:
        pairs = [pair for pair in matrix() if source in (None, pair.source) and column in (None, pair.column)]
        print_json(
            [{"field": pair.source, "column": pair.column, "form": form.text, "lost": form.lost} for pair in pairs for form in pair.forms]
        )
        return
    chosen = [form for form in FORMS if (source is None or source in form.sources) and (column is None or column in form.columns)]
    if not chosen:
        out.print(f"a {source} cannot become {column}", highlight=False)
        raise typer.Exit(1)
    table = Table("field", "column", "form of the value", "example", "lost", box=None)
    for form in chosen:
        shown = source or ", ".join(form.sources), column or named(form.columns)
        notation = f", {'format' if '%' in form.notation else 'unit'} {form.notation}" if form.notation else ""
        table.add_row(*shown, form.text.replace("`", ""), f"{form.example}{notation}", form.lost)
    out.print(table, markup=False, highlight=False)
