"""The daemon from which Spark forks the processes of UDFs, with what they need imported once, and with a limit of their address space.

A UDF that raises ends its process: without these imports the next one is ready after 0.7 s.
"""

import resource

from pipelines.installed_pyspark import leave_out_copies

ADDRESS_BYTES = 4 * 1024**3


def serve() -> None:
    """Import what UDFs need, and fork their processes for as long as Spark asks."""
    leave_out_copies()
    # Not before.
    import pandas  # noqa: F401
    import pyarrow  # noqa: F401
    import pyspark.worker  # noqa: F401
    from pyspark.daemon import manager

    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_BYTES, ADDRESS_BYTES))
    manager()


if __name__ == "__main__":
    serve()
