"""The rows so far beside an edited file, for `diff FILE` and `apply`: by the mapping that they were made with, and made anew on request."""

from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelines.cli.arguments import announce, directory_of, progress_bar
from pipelines.config import PipelineConfig
from pipelines.counts import count_of
from pipelines.errors import HaltError

if TYPE_CHECKING:
    from pipelines.connectors.nats.client import JetStream
    from pipelines.edits.plan import Edit
    from pipelines.proof.made_ranges import Made
    from pipelines.proof.rows_anew import Trial


@dataclass(frozen=True)
class MadeRows:
    """The rows so far. `trial`: what the edited file makes of them, if that was tried.

    `refilled`: the columns whose DEFAULT is computed again.
    """

    made: "Made"
    trial: "Trial | None" = None
    refilled: tuple[str, ...] = ()

    def lines(self, file: Path) -> Iterator[str]:
        """Yield what a person reads of them; nothing if all are as the file makes them."""
        if plan := self.made.unfinished:
            rows = count_of(plan.rows, "row")
            yield f"unfinished: {rows} of {plan.table}, raw {plan.first}..{plan.last}, may be out of the table until they are made anew"
            yield f"  `tallyflow apply {file} --reprocess` finishes it"
        if not any(one.differences for one in self.made.ranges):
            return
        yield "rows so far, by the mapping that they were made with:"
        for one in self.made.ranges:
            rows = "rows" if one.rows is None else count_of(one.rows, "row")
            purged = "; raw has their records no more, so they stay" if one.is_purged else ""
            yield f"  {one.table}, raw {one.first}..{one.last}: {rows}, {', '.join(one.differences) or 'as this file makes them'}{purged}"
        if self.trial is not None:
            made = count_of(self.trial.rows - self.trial.failed, "row")
            yield f"  computed under this file: {made}, and none for {count_of(self.trial.failed, 'record')} with a row"
            yield from (f"    {example}" for example in self.trial.examples)
        elif self.made.differs:
            yield f"  `tallyflow apply {file} --reprocess` makes them anew, as far as raw has their records"
        if self.refilled:
            yield f"  their DEFAULT is computed again: {', '.join(self.refilled)}"

    def document(self) -> Mapping[str, Any]:
        """Return them as JSON values."""
        plan = self.made.unfinished
        unfinished = {"table": plan.table, "first": plan.first, "last": plan.last, "rows": plan.rows} if plan else None
        return {"rows_so_far": [asdict(one) for one in self.made.ranges], "unfinished": unfinished}


def made_rows(config: PipelineConfig, edit: "Edit", log: "JetStream", *, reprocess: bool, tries: bool) -> MadeRows:
    """Return the rows so far, and note in `edit` that they are made anew, if that is asked for and there are some.

    `tries`: compute them, and change nothing. Raise NotSupportedError for a pipeline, table or edit with which it would not be exact.
    """
    from pipelines.connectors.clickhouse.client import ClickHouse
    from pipelines.proof.made_ranges import is_owned, made_ranges
    from pipelines.proof.remakable import check_edit, check_table, refilled
    from pipelines.proof.reprocess import try_ranges

    made = made_ranges(config, {leg: table.columns for leg, table in edit.tables.items()}, log)
    if not reprocess or not (made.differs or made.unfinished):
        return MadeRows(made)
    edit.remakes = True
    program = made.programs[config.sink_leg]
    with closing(ClickHouse(config.sink)) as clickhouse:
        table = clickhouse.inspect(program.database, program.table)
        if table is None:
            return MadeRows(made)
        table = replace(table, columns=tuple(edit.tables[config.sink_leg].columns))
        check_table(config, program, table, clickhouse)
    check_edit(config, program, log)
    with progress_bar() as progress:
        trial = try_ranges(config, program, table, log, progress) if tries and is_owned(config) else None
    return MadeRows(made, trial, tuple(refilled(program, table)))


def check_finished(found: MadeRows, file: Path) -> None:
    """Raise HaltError while rows are out of the table to be made anew."""
    if plan := found.made.unfinished:
        raise HaltError(
            f"changing the pipeline of {file}: rows of {plan.table}, raw {plan.first}..{plan.last}, may be out of the table, because they "
            "were not made anew to the end; nothing was changed. Add --reprocess, which finishes it first"
        )


def remake(config: PipelineConfig) -> None:
    """Make the rows anew that were made otherwise than the file makes them; the pipeline stands."""
    from pipelines.connectors.nats.client import JetStream
    from pipelines.proof.reprocess import reprocess

    with closing(JetStream.of(config)) as log, progress_bar() as progress:
        log.connect()
        count = reprocess(config, log, directory_of(config), progress)
    announce(f"{count_of(count, 'row')} made anew")
