"""What all commands share: arguments, the consoles, and errors as one message and an exit code."""

import json
import re
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import progress as bars
from rich.console import Console, ConsoleOptions, RenderableType
from rich.markup import escape
from rich.segment import Segment

from pipelines.cli.default_file import VARIABLE, only_pipeline_file
from pipelines.config import PipelineConfig
from pipelines.errors import ConfigurationError, TallyflowError
from pipelines.home import default_home
from pipelines.progress import Progress
from pipelines.protocol.naming import Names

if TYPE_CHECKING:
    from pipelines.protocol.topology import LegId

File = Annotated[
    Path,
    typer.Argument(
        help="The pipeline file (YAML or JSON).",
        exists=True,
        dir_okay=False,
        envvar=VARIABLE,
        default_factory=only_pipeline_file,
        show_default="the only one in this directory",
    ),
]
NamedFile = Annotated[Path, typer.Argument(help="The pipeline file (YAML or JSON).", exists=True, dir_okay=False)]
"""The file of a command with arguments behind it: which of them were left out could not be told."""
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
UntilCaughtUp = Annotated[bool, typer.Option("--until-caught-up", help="Exit once every record now in Kafka is in ClickHouse.")]
Master = Annotated[str | None, typer.Option(help="Spark master. Default: this machine, all cores.")]
SparkConf = Annotated[
    Path | None,
    typer.Option(envvar="TALLYFLOW_SPARK_CONF", help="Spark's properties file for --master: a cluster's secret, memory.", dir_okay=False),
]

_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
"""Characters that a terminal obeys instead of showing, except line ends and tabs."""


class Terminal(Console):
    """Shows control characters as escapes: a record's key or value could otherwise write to the terminal."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            if segment.control or not _CONTROLS.search(segment.text):
                yield segment
            else:
                yield Segment(_CONTROLS.sub(lambda found: found[0].encode("unicode_escape").decode(), segment.text), segment.style)


out = Terminal()
# Messages hold statements and paths to copy: a narrow terminal must not break them.
err = Terminal(stderr=True, soft_wrap=True)


@contextmanager
def progress_bar() -> Iterator[Progress]:
    """Show the step in work and a progress bar on a terminal; yield what moves them."""
    with bars.Progress(console=err, transient=True, disable=not err.is_terminal) as shown:
        task = shown.add_task("starting", total=None)
        yield lambda step, done=0, total=0: shown.update(task, description=escape(step), completed=done, total=total or None)


def print_json(value: Any) -> None:
    """Print the value as JSON: instants in ISO 8601, durations in seconds."""
    typer.echo(json.dumps(value, indent=2, default=_plain))


def utc(instant: datetime) -> str:
    return f"{instant:%Y-%m-%d %H:%M:%S.%f} UTC"


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat(timespec="microseconds")
    return value.total_seconds() if isinstance(value, timedelta) else str(value)


def directory_of(config: PipelineConfig) -> Path:
    return Names(config.pipeline_id).directory(default_home())


def replace_text(path: Path, text: str) -> None:
    """Replace the text of a file as a whole, with the ends of lines that it has: whatever happens meanwhile, what it had is there."""
    path = path.resolve()
    part = path.with_name(f".{path.name}.part")
    part.write_text(text, encoding="utf-8", newline="\r\n" if b"\r\n" in path.read_bytes() else "\n")
    shutil.copymode(path, part)
    part.replace(path)


def announce(text: str) -> None:
    err.print(text, markup=False, highlight=False)


def since_instant(text: str) -> datetime:
    """Parse a time option: an ISO 8601 instant (UTC if it has no zone), or a duration before now such as 1h."""
    from pipelines.config.durations import parse_duration

    try:
        instant = datetime.fromisoformat(text)
        return instant.astimezone(UTC) if instant.tzinfo else instant.replace(tzinfo=UTC)
    except ValueError:
        pass
    try:
        return datetime.now(UTC) - parse_duration(text)
    except (ValueError, OverflowError):
        raise typer.BadParameter("must be an instant such as 2026-01-31T12:00:00, or a duration such as 30m, 1h or 2d") from None


def selected(config: "PipelineConfig", legs: Iterable[str]) -> "tuple[LegId, ...]":
    """Return the legs that `--leg` options name, or all legs if there is none. Raise BadParameter for an unknown leg."""
    try:
        return config.topology.select(legs)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


@contextmanager
def errors_as_exit(failure: int = 1) -> Iterator[None]:
    """Print an error of ours as one message and exit with the code `failure`, or 2 for an invalid file.

    Any other exception is a bug and keeps its traceback.
    """
    try:
        yield
    except ConfigurationError as error:
        err.print(str(error), style="red", markup=False, highlight=False)
        raise typer.Exit(2) from None
    except TallyflowError as error:
        err.print(str(error), style="red", markup=False, highlight=False)
        raise typer.Exit(failure) from None
