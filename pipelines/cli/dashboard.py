"""The command that serves the dashboard."""

from typing import Annotated

import typer

from pipelines.cli.arguments import File, errors_as_exit, out
from pipelines.config import load

DEFAULT_PORT = 8090


def dashboard(
    file: File,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port on 127.0.0.1; 0 takes a free one.")] = DEFAULT_PORT,
    refresh: Annotated[bool, typer.Option("--refresh", help="Let ClickHouse compute the windows of the rollups first.")] = False,
) -> None:
    """Serve a page with the figures of the file's rollups on 127.0.0.1, until Ctrl-C. It only reads."""
    from pipelines.dashboard.server import Dashboard

    with errors_as_exit():
        shown = Dashboard(load(file), port)
        if refresh:
            shown.refresh()
        out.print(f"the dashboard is at {shown.url} (Ctrl-C ends it)", highlight=False, markup=False, soft_wrap=True)
        shown.serve()
