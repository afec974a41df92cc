"""How `validate` and `doctor` check a pipeline file: by itself, and against its servers."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from pipelines.cli.arguments import errors_as_exit, out, print_json
from pipelines.config import PipelineConfig, load, notes
from pipelines.config.load import read_text
from pipelines.config.text import location_of, path_text
from pipelines.counts import count_of
from pipelines.errors import ConfigurationError
from pipelines.home import default_home

if TYPE_CHECKING:
    from pipelines.runner.examination import Look


def check_file(file: Path, as_json: bool) -> None:
    """Report every fault of a pipeline file at once, then the notes on settings to review."""
    from pipelines.runner.file_checks import check_supported

    with errors_as_exit():
        config = _sound(file)
        told = [str(note) for note in notes(config)]
        for note in [] if as_json else told:
            out.print(f"note: {note}", style="yellow", markup=False)
        check_supported(config)
    if as_json:
        print_json({"pipeline": config.pipeline_id, "notes": told})
        return
    out.print(f"{file}: pipeline {config.pipeline_id} is valid", markup=False, soft_wrap=True)


def examine_start(file: Path, as_json: bool, java: Callable[[], str]) -> None:
    """Look at all that a start needs, and report every fault at once; exit with 1 for faults. `java`: as in `examination.examine`."""
    from pipelines.lint.lines import Lines
    from pipelines.runner.examination import examine
    from pipelines.runner.file_checks import check_supported

    with errors_as_exit():
        config = _sound(file)
        check_supported(config)
        lines, looks = Lines.of(read_text(file)), []
        for look in examine(config, default_home(), java):
            looks.append(look)
            if not as_json:
                _show(file, lines.place_of(look.at), look)
    faults = sum(len(look.faults) for look in looks)
    if as_json:
        print_json([_record(look, lines.place_of(look.at)) for look in looks])
    else:
        out.print(count_of(faults, "fault"), highlight=False)
    if faults:
        raise typer.Exit(1)


def _sound(file: Path) -> PipelineConfig:
    """Return the config of a file. Raise ConfigurationError with every fault, each with its line and column."""
    from pipelines.runner.file_checks import check_functions, check_types

    try:
        config = load(file)
        check_types(config)
        check_functions(config)
    except ConfigurationError as error:
        raise _placed(error, file) from None
    return config


def _placed(error: ConfigurationError, file: Path) -> ConfigurationError:
    """Return the error with the places of its faults; without them for a file that is no YAML, whose only fault names its own."""
    import yaml

    from pipelines.lint.lines import Lines

    try:
        lines = Lines.of(read_text(file))
    except yaml.YAMLError:
        return error
    places = [lines.place_of(location_of(fault.path)) for fault in error.faults]
    named = (f"{file}:{line}:{column}" for line, column in places)
    faults = [replace(fault, place=place) if fault.path else fault for fault, place in zip(error.faults, named, strict=True)]
    return ConfigurationError(error.subject, faults)


def _show(file: Path, place: tuple[int, int], look: "Look") -> None:
    """Print what was found, and a line for each fault, with its place in the file."""
    if look.found and not look.faults:
        out.print("ok     ", style="green", end="")
        out.print(f"{look.what}: {look.found}", markup=False, highlight=False, soft_wrap=True)
    line, column = place
    beginning = f"{file}:{line}:{column}: " if look.at else ""
    for fault in look.faults:
        out.print("fault  ", style="red", end="")
        out.print(f"{beginning}{look.what}: {fault}", markup=False, highlight=False, soft_wrap=True)


def _record(look: "Look", place: tuple[int, int]) -> dict[str, Any]:
    path, line, column = (path_text(look.at), *place) if look.at else (None, None, None)
    where = {"path": path, "line": line, "column": column}
    return {"what": look.what, **where, "found": look.found, "faults": list(look.faults)}
