"""The daemon from which Spark forks its Python workers, with everything that a share of legs needs imported once.

A new worker, at a start or after a kill, is ready in milliseconds instead of after a second of imports, and workers share that memory.
When the executor has ended, it tells the runners of its workers that these have, too.
"""

import gc

from pipelines.installed_pyspark import leave_out_copies


def serve() -> None:
    """Import what workers need, and fork them for as long as Spark asks."""
    leave_out_copies()
    # Not before.
    import pyarrow as pa
    from pyspark.daemon import manager

    import pipelines.runner.epochs  # noqa: F401
    from pipelines.runner import wills
    from pipelines.without_pandas import leave_out_pandas

    # mimalloc, PyArrow's own, gives memory back that the next frame takes again: a tenth more CPU per event, for cleared pages (bench).
    pa.set_memory_pool(pa.system_memory_pool())
    leave_out_pandas()
    # A collection would visit, and so copy, what the workers share.
    gc.collect()
    gc.freeze()
    wills.begin()
    try:
        manager()
    finally:
        # Spark's daemon leaves by an exception, with a signal to its workers, when its executor has ended; a worker never comes here.
        wills.tell(wills.left_behind())


if __name__ == "__main__":
    serve()
