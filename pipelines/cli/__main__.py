"""The `tallyflow` command, also as `python -m pipelines.cli`."""

import os

from pipelines.collection import no_collection
from pipelines.private import OWNER_ONLY


def main() -> None:
    """Run the command.

    Files that it and its child processes write are readable by this user only.
    """
    os.umask(OWNER_ONLY)
    # Otherwise numpy starts a thread per core, each of which turns for a tenth of a second before it sleeps; nothing here computes with it.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    with no_collection():
        from pipelines.cli.app import app
        from pipelines.without_pandas import leave_out_pandas

        leave_out_pandas()
    app()


if __name__ == "__main__":
    main()
