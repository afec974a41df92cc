"""The table of a pipeline that has caught up, for tests that damage nothing else: what it held is kept beside it, and put back."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from resources.local.stack import LocalStack
from support.pipeline_case import PipelineCase, with_all_up


@contextmanager
def caught_up_case(stack: LocalStack, directory: Path, prepare: Callable[[PipelineCase], None]) -> Iterator[PipelineCase]:
    """A pipeline that `prepare` has let catch up, with its table kept."""
    made = PipelineCase(with_all_up(stack), directory)
    prepare(made)
    keep_table(made)
    yield made
    made.end()


def keep_table(case: PipelineCase) -> None:
    """Copies the table to `<table>_kept`."""
    case.client().command(f"CREATE TABLE {case.table}_kept AS {case.table}")
    case.client().command(f"INSERT INTO {case.table}_kept SELECT * FROM {case.table}")


def remake_table(case: PipelineCase, definition: str = "", columns: str = "*") -> None:
    """Makes the table anew, as it was or as defined so, with the rows that it had."""
    client, kept = case.client(), f"{case.table}_kept"
    client.command(f"DROP TABLE IF EXISTS {case.table}")
    client.command(f"CREATE TABLE {case.table} {definition or f'AS {kept}'}")
    # Without a note of the block: a test may insert the same rows again.
    client.command(f"INSERT INTO {case.table} SELECT {columns} FROM {kept}", settings={"insert_deduplicate": 0})
