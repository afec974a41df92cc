"""The errors that Tallyflow raises itself: the tree of errors.py. Their messages say what to do; no class of theirs can be changed."""

from pipelines.error_classes.rows import ErrorRow, rows

ROWS: tuple[ErrorRow, ...] = (
    *rows(
        "tallyflow",
        "retryable",
        "it is tried again, or read again, by itself",
        (None, "RetryableError", "a system is away or overloaded"),
        (None, "InsertTooLargeError", "ClickHouse gave an insert up for the time or the memory that it takes; the third time it is cut"),
        (None, "ConflictError", "a compare-and-set lost"),
        (None, "UndecidedError", "a stage ends on some records: the plan names them, and it is tried again without them"),
        is_fixed=True,
    ),
    *rows(
        "tallyflow",
        "record",
        "`tallyflow dlq groups FILE` tells the causes with their likely fix",
        (None, "RefusedError", "ClickHouse refuses rows of a block"),
        is_fixed=True,
    ),
    *rows(
        "tallyflow",
        "halt",
        "look the message up in docs/halts.md",
        (None, "HaltError", "going on could lose or double an event, or can never succeed"),
        (None, "FencedError", "another runner holds the pipeline"),
        (None, "ProcessLostError", "Spark's JVM has ended, killed or out of memory; the next start goes on where it stood"),
        (None, "DataLossError", "positions that were promised are gone or have other content"),
        (None, "StateDamagedError", "a file of the key store is missing or damaged"),
        (None, "NotSupportedError", "the file asks for what this release does not run"),
        (None, "InvariantError", "a promise of the protocol does not hold"),
        is_fixed=True,
    ),
    *rows(
        "tallyflow",
        "halt",
        "correct what the message lists; nothing was started",
        (None, "ConfigurationError", "the pipeline file, or the table for it, cannot be used"),
        is_fixed=True,
    ),
)
