"""The command `logs`: what the runs of a pipeline on this host have logged, Spark's and Python's own words included."""

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from pipelines.cli.arguments import File, directory_of, err, errors_as_exit, out
from pipelines.config import load
from pipelines.control.control import find_runners
from pipelines.control.runner_log import logs_of

_POLL_SECONDS = 0.2


def logs(
    file: File,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait for more until Ctrl-C; a later start's log follows.")] = False,
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, help="Begin with at most so many of the last lines.")] = 200,
    leg: Annotated[str | None, typer.Option(help="Show the log of the runner of this leg, where several run.")] = None,
) -> None:
    """Show the log of the pipeline's runner on this host, or of the last one: steps, waits, halts, and what Spark and Python print."""
    with errors_as_exit():
        directory = directory_of(load(file, offline=True))
    path = log_of(directory, leg)
    if path is None:
        err.print(f"pipeline {directory.name} has no log on this host: it was never started here; start it with `tallyflow run`")
        raise typer.Exit(1)
    with suppress(KeyboardInterrupt):
        for line in lines_of(path, lines, (lambda: log_of(directory, leg) or path) if follow else None):
            out.print(line, markup=False, highlight=False, soft_wrap=True)


def log_of(directory: Path, leg: str | None = None) -> Path | None:
    """Return the log of the runner that lives, of the one with `leg` if there are several, else the newest; None if there is none.

    Raise BadParameter if several runners live and `leg` names none of theirs.
    """
    runners = [runner for runner in find_runners(directory) if runner.get("log")]
    if leg is None and len(runners) == 1:
        return Path(runners[0]["log"])
    if leg is not None or runners:
        found = [runner for runner in runners if leg in runner["legs"]]
        if not found:
            legs = ", ".join(each for runner in runners for each in runner["legs"]) or "none"
            raise typer.BadParameter(f"name the leg whose log is to be shown; here run: {legs}", param_hint="--leg")
        return Path(found[0]["log"])
    return next(iter(logs_of(directory, "run")), None)


def lines_of(path: Path, last: int, newest: Callable[[], Path] | None) -> Iterator[str]:
    """Yield the `last` lines of a log; then, with `newest`, what is written to it, and to the log that `newest` names later."""
    with path.open(encoding="utf-8", errors="replace") as file:
        yield from (line.rstrip("\n") for line in deque(file, maxlen=last))
        position = file.tell()
    while newest is not None:
        time.sleep(_POLL_SECONDS)
        if (other := newest()) != path:
            path, position = other, 0
        more, position = _since(path, position)
        yield from more


def _since(path: Path, position: int) -> tuple[list[str], int]:
    """Return the whole lines behind a position of a log, and the next position; from the start if the log was cut meanwhile."""
    try:
        with path.open("rb") as file:
            file.seek(position if position <= path.stat().st_size else 0)
            start, content = file.tell(), file.read()
    except FileNotFoundError:
        return [], position
    whole = content[: content.rfind(b"\n") + 1]
    return whole.decode("utf-8", "replace").splitlines(), start + len(whole)
