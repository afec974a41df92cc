"""Dagster's web server behind `web.guard`; takes the arguments of `dagster-webserver`."""

from typing import Any

from dagster_webserver import cli as webserver_cli

from dagster_project.web.guard import Guard

cli: Any = webserver_cli
_make_app = cli.create_app_from_workspace_process_context


def make_guarded_app(*arguments: Any, **options: Any) -> Guard:
    return Guard(_make_app(*arguments, **options))


def main() -> None:
    # dagster-webserver has no option for a middleware.
    cli.create_app_from_workspace_process_context = make_guarded_app
    cli.main()


if __name__ == "__main__":
    main()
