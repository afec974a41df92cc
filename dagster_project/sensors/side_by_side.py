"""Look at many pipelines in parallel within a time limit, so that one with silent systems delays no other."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from datetime import timedelta
from threading import Thread
from typing import TypeVar

from dagster_project.pipeline_files import Pipeline
from pipelines.errors import RetryableError, TallyflowError

T = TypeVar("T")
WITHIN = timedelta(seconds=3)
"""Time limit of a tick for looking at all pipelines; a pipeline that misses it is seen by the next tick."""


def look_at_all(pipelines: Sequence[Pipeline], look: Callable[[Pipeline], T]) -> Iterator[tuple[Pipeline, T | TallyflowError]]:
    """Yield what `look` found for each pipeline, in their order; an error of ours if it raised one, or did not finish in time."""
    asked: list[Future[T]] = []
    for pipeline in pipelines:
        asked.append(Future())
        # As a daemon: a hanging look blocks neither the tick nor the exit of the code server.
        Thread(target=_answer, args=(asked[-1], look, pipeline), name="tick", daemon=True).start()
    wait(asked, timeout=WITHIN.total_seconds())
    for pipeline, one in zip(pipelines, asked, strict=True):
        if not one.done():
            yield pipeline, RetryableError(f"no answer within {WITHIN.total_seconds():.0f} s")
            continue
        try:
            yield pipeline, one.result()
        except TallyflowError as error:
            yield pipeline, error


def _answer(asked: Future[T], look: Callable[[Pipeline], T], pipeline: Pipeline) -> None:
    try:
        asked.set_result(look(pipeline))
    except BaseException as error:
        # Raised again where the result is read.
        asked.set_exception(error)
