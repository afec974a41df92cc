"""The `tallyflow` command, also as `python -m pipelines.cli`."""

import os

from pipelines.cli.app import app
from pipelines.private import OWNER_ONLY


def main() -> None:
    """Runs the command; what it and the processes that it starts write is for this user only."""
    os.umask(OWNER_ONLY)
    app()


if __name__ == "__main__":
    main()
