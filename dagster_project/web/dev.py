"""`dagster dev`, whose web server is the guarded one; takes the arguments of `dagster`."""

from typing import Any

from dagster._cli import dev as dagster_dev
from dagster._cli import main as dagster_main

dev: Any = dagster_dev
main: Any = dagster_main
_WEBSERVER, _GUARDED = "dagster_webserver", "dagster_project.web.server"
_open = dev.open_ipc_subprocess


def open_guarded(words: list[str], **options: Any) -> Any:
    """Starts what `dagster dev` starts. It names its web server by a module, and has no option for another one."""
    return _open([_GUARDED if word == _WEBSERVER else word for word in words], **options)


if __name__ == "__main__":
    dev.open_ipc_subprocess = open_guarded
    main()
