"""The command that reports what a pipeline file says and probably does not mean."""

from dataclasses import asdict
from pathlib import Path

import typer

from pipelines.cli.arguments import AsJson, File, errors_as_exit, leave_out_pandas, out, print_json
from pipelines.config import PipelineConfig, load
from pipelines.config.load import read_text
from pipelines.counts import count_of
from pipelines.errors import ConfigurationError


def lint(file: File, as_json: AsJson = False) -> None:
    """Check a pipeline file, and report what is legal and likely wrong: each finding with its line, code and fix. Connects to nothing.

    Exit code 0: no finding, 1: findings, 2: the file is not valid. Example: tallyflow lint orders.yaml --json
    """
    leave_out_pandas()
    from pipelines.lint.run import findings
    from pipelines.preview.declared import declared_program

    with errors_as_exit():
        config, has_connections = _loaded(file)
        declared_program(config)
        found = findings(config, read_text(file), has_connections)
    if as_json:
        print_json([asdict(finding) for finding in found])
    else:
        for one in found:
            place = f" {one.path}" if one.path else ""
            out.print(f"{file}:{one.line}: {one.code}{place}: {one.message}", markup=False, highlight=False, soft_wrap=True)
            out.print(f"    {one.fix}", markup=False, highlight=False, soft_wrap=True)
        if not has_connections:
            out.print("connections were not looked at: a variable or a file of theirs is missing", markup=False, highlight=False)
        out.print(count_of(len(found), "finding"), highlight=False)
    if found:
        raise typer.Exit(1)


def _loaded(file: Path) -> tuple[PipelineConfig, bool]:
    """Return the config, and whether it has the values of its connections. Raise ConfigurationError with every other fault."""
    try:
        return load(file), True
    except ConfigurationError:
        return load(file, offline=True), False
