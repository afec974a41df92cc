"""`python -m bench`: all figures of this release, as a table and as JSON."""

import json
from pathlib import Path
from typing import Annotated

import typer

from bench import alone, on_stack
from bench.asked import Asked, console
from bench.processes import machine
from bench.release import HERE, release_before
from resources.local.stack import LocalStack

app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)


def _part(name: str) -> str:
    known = [*on_stack.NAMES, *alone.PARTS]
    if name and name not in known:
        raise typer.BadParameter(f"there is no {name}: name one of {', '.join(known)}")
    return name


@app.command()
def main(
    home: Annotated[Path, typer.Option(help="State of the servers and pipelines.")] = Path(".tallyflow/bench"),
    events: Annotated[int, typer.Option(help="Preloaded events of 200 bytes.")] = 5_000_000,
    large_events: Annotated[int, typer.Option(help="Preloaded events of 1500 bytes; 0 leaves them out.")] = 5_000_000,
    runs: Annotated[int, typer.Option(help="Runs of each; the one with the median rate is shown. How many losses of each kind.")] = 3,
    only: Annotated[
        str, typer.Option(callback=_part, help=f"One part: {', '.join([*on_stack.NAMES, *alone.PARTS])}. The default is the first five.")
    ] = "",
    live_keys: Annotated[
        list[int] | None, typer.Option(help="Live keys of the dedup stage, or right keys of the join, alone; may repeat.")
    ] = None,
    verified_events: Annotated[
        int, typer.Option(help="Events of 200 bytes of verification, one in ten a copy; orders of rollups.")
    ] = 10_000_000,
    latency_seconds: Annotated[float, typer.Option(help="How long latency is measured.")] = 60.0,
    cluster: Annotated[bool, typer.Option("--cluster", help="Throughput and losses on a Spark cluster: a master and two workers.")] = False,
    lanes: Annotated[int, typer.Option(min=1, help="`lanes` of the measured pipelines.")] = 1,
    streams: Annotated[int, typer.Option(min=1, help="`streams` of the measured pipelines.")] = 1,
    before: Annotated[
        Path | None,
        typer.Option(
            help="A checkout of another release with its own .venv: throughput and latency with it, too, in turns, and the ratios."
        ),
    ] = None,
) -> None:
    """Measures ingest alone, the whole pipeline, and latency at 1,000 events/s, with all servers on this machine."""
    home = home.absolute()
    releases = [HERE, *([release_before(before)] if before else [])]
    asked = Asked(
        home, events, large_events, runs, only, live_keys or [], verified_events, latency_seconds, cluster, lanes, streams, releases
    )
    if part := alone.PARTS.get(only):
        part(asked)
        return
    stack = LocalStack(home)
    stack.up(with_spark=cluster)
    results: dict[str, object] = {"machine": machine(), "events": events, "large_events": large_events, "runs": runs}
    try:
        on_stack.measure(asked, stack, results)
    finally:
        (home / "results.json").write_text(json.dumps(results, indent=2))
        stack.down()
    console.print(f"{machine()}; JSON in {home / 'results.json'}")


if __name__ == "__main__":
    app()
