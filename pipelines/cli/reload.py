"""The command `reload`, and the step of `apply` that does the same: the running pipeline takes the settings of its edited file."""

from datetime import timedelta
from pathlib import Path

import typer

from pipelines.cli.arguments import File, announce, directory_of, errors_as_exit
from pipelines.config import PipelineConfig, load
from pipelines.config.load import read_text

_PATIENCE = timedelta(seconds=60)


def reload(file: File) -> None:
    """Let the running pipeline take the settings of its edited file: batch sizes, intervals, limits. Nothing stops.

    Refused, with the fields, if the edit needs more than that: `tallyflow apply` does it. Waits until every leg works under the new
    settings; exit code 1 if one does not within a minute, because its batch waits for a server.
    """
    with errors_as_exit():
        text = read_text(file)
        reload_with(file, load(file, text=text), text)


def reload_with(file: Path, config: PipelineConfig, text: str) -> None:
    """Let the runners on this host take the settings of `text`, and say so. Raise Exit if a leg still works under the earlier ones."""
    from pipelines.control.reload import reload_runners

    left = reload_runners(directory_of(config), text, _PATIENCE)
    for leg, why in left.items():
        announce(f"{leg} works under the earlier settings until its batch is done: {why}; `tallyflow status {file}` shows when")
    if left:
        raise typer.Exit(1)
    announce("every leg works under the new settings")
