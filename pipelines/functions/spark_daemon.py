"""The daemon from which Spark forks the processes of UDFs, with what they need imported once, and with a limit of their address space.

A UDF that raises ends its process: without these imports the next one is ready after 0.7 s.
"""

import resource

import pandas  # noqa: F401
import pyarrow  # noqa: F401
import pyspark.worker  # noqa: F401
from pyspark.daemon import manager

ADDRESS_BYTES = 4 * 1024**3

if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_BYTES, ADDRESS_BYTES))
    manager()
