"""The steps of an edit, carried out. Each may be repeated: an edit that was killed is applied again from what is there."""

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass

from pipelines.config import PipelineConfig
from pipelines.connectors.sinks import open_sink
from pipelines.edits.changes import Need
from pipelines.edits.columns import Alteration
from pipelines.edits.plan import Edit
from pipelines.errors import HaltError, TallyflowError
from pipelines.protocol.topology import LegId


@dataclass(frozen=True)
class Step:
    """One step, in words, and what carries it out."""

    what: str
    do: Callable[[], object]


@dataclass(frozen=True)
class Means:
    """How a pipeline is stopped, drained under the file that it ran with, and rebucketed, and how its rows so far are made anew.

    `reload`: how the running pipeline takes the settings of the edited file.
    """

    reload: Callable[[], None]
    stop: Callable[[], object]
    drain: Callable[[], None]
    rebucket: Callable[[], None]
    remake: Callable[[], None]


def steps(edit: Edit, config: PipelineConfig, means: Means, *, is_running: bool) -> Iterator[Step]:
    """Yield the steps before the start of the edited file, in their order; none for an edit that holds at once.

    A reload is the only step of its edit, and no start follows it.
    """
    for leg, one in edit.early:
        yield _alter(config, leg, one)
    if edit.need == Need.NOTHING:
        return
    if edit.need == Need.RELOAD:
        if is_running:
            yield Step("reload: each leg takes the new settings behind its batch, and nothing stops", means.reload)
        return
    if is_running:
        yield Step("stop the runner: batches in work are finished", means.stop)
    if edit.needs_drain:
        yield Step("deliver the rows that wait, under the file as it ran", means.drain)
    for leg, one in edit.late:
        yield _alter(config, leg, one)
    if edit.need == Need.REBUCKET:
        yield Step(f"rewrite the key store to {config.buckets} buckets", means.rebucket)
    if edit.remakes:
        yield Step("make the rows so far anew that were made otherwise: delete and insert them, portion by portion", means.remake)


def _alter(config: PipelineConfig, leg: LegId, alteration: Alteration) -> Step:
    return Step(f"{alteration.statement}   -- {alteration.why}", lambda: _run(config.seen_from(leg), alteration))


def _run(config: PipelineConfig, alteration: Alteration) -> None:
    with closing(open_sink(config)) as sink:
        sink.alter(alteration.statement)


def carry_out(todo: list[Step], announce: Callable[[str], None]) -> None:
    """Carry out the steps. Raise HaltError, naming the step, for one that fails: those before it hold, and none behind it was begun."""
    for number, step in enumerate(todo, 1):
        announce(f"{number}. {step.what}")
        try:
            step.do()
        except TallyflowError as error:
            done = f"steps 1 to {number - 1} are done" if number > 2 else "step 1 is done" if number == 2 else "nothing was changed"
            raise HaltError(f"applying the edit: step {number} failed, {done}: {error}. Mend it, and apply the edit again") from error
