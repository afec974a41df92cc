"""The command that reports what a pipeline file says and probably does not mean, and mends what is certain."""

from dataclasses import asdict
from difflib import unified_diff
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipelines.cli.arguments import AsJson, File, errors_as_exit, out, print_json, replace_text
from pipelines.config import PipelineConfig, load
from pipelines.config.load import read_text
from pipelines.counts import count_of
from pipelines.errors import ConfigurationError

if TYPE_CHECKING:
    from pipelines.lint.run import Finding


def lint(
    file: File,
    is_mended: Annotated[
        bool, typer.Option("--fix", help="Write the fixes that are certain into the file, and show them; the others stay findings.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Check a pipeline file, and report what is legal and likely wrong: each finding with its line, code and fix. Connects to nothing.

    Exit code 0: no finding, 1: findings, 2: the file is not valid. Example: tallyflow lint orders.yaml --json
    """
    from pipelines.lint.mend import mended

    with errors_as_exit():
        found, has_connections = _findings(file)
        before = read_text(file)
        text, done = mended(before, found) if is_mended else (before, [])
        if done:
            replace_text(file, text)
            found, _ = _findings(file)
    diff = "".join(unified_diff(before.splitlines(keepends=True), text.splitlines(keepends=True), str(file), str(file)))
    if as_json:
        shown = [_plain(one) for one in found]
        print_json({"fixed": [_plain(one) for one in done], "diff": diff, "findings": shown} if is_mended else shown)
    else:
        out.print(diff, end="", markup=False, highlight=False, soft_wrap=True)
        _print(file, found, has_connections)
        if is_mended:
            out.print(f"{count_of(len(done), 'finding')} fixed", highlight=False)
    if found:
        raise typer.Exit(1)


def _print(file: Path, found: "list[Finding]", has_connections: bool) -> None:
    for one in found:
        place = f" {one.path}" if one.path else ""
        out.print(f"{file}:{one.line}: {one.code}{place}: {one.message}", markup=False, highlight=False, soft_wrap=True)
        certain = " (--fix does it)" if one.mend else ""
        out.print(f"    {one.fix}{certain}", markup=False, highlight=False, soft_wrap=True)
    if not has_connections:
        out.print("connections were not looked at: a variable or a file of theirs is missing", markup=False, highlight=False)
    out.print(count_of(len(found), "finding"), highlight=False)


def _plain(finding: "Finding") -> dict[str, Any]:
    return {name: value for name, value in asdict(finding).items() if name != "mend"} | {"is_certain": finding.mend is not None}


def _findings(file: Path) -> "tuple[list[Finding], bool]":
    """Return the findings of a file, and whether the values of its connections were looked at, too."""
    from pipelines.lint.run import findings
    from pipelines.preview.declared import declared_program

    config, has_connections = _loaded(file)
    declared_program(config)
    return findings(config, read_text(file), has_connections), has_connections


def _loaded(file: Path) -> tuple[PipelineConfig, bool]:
    """Return the config, and whether it has the values of its connections. Raise ConfigurationError with every other fault."""
    try:
        return load(file), True
    except ConfigurationError:
        return load(file, offline=True), False
