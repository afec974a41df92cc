"""`dagster dev` with the guarded web server; takes the arguments of `dagster`."""

from typing import Any

from dagster._cli import dev as dagster_dev
from dagster._cli import main as dagster_main

dev: Any = dagster_dev
main: Any = dagster_main
_WEBSERVER, _GUARDED = "dagster_webserver", "dagster_project.web.server"
_open = dev.open_ipc_subprocess


def open_guarded(words: list[str], **options: Any) -> Any:
    """Start a process of `dagster dev`, with our web server in place of Dagster's: there is no option for another one."""
    return _open([_GUARDED if word == _WEBSERVER else word for word in words], **options)


if __name__ == "__main__":
    dev.open_ipc_subprocess = open_guarded
    main()
