"""What the commands share that end a pipeline's runners on this host."""

from collections.abc import Collection
from datetime import timedelta

from pipelines.cli.arguments import directory_of
from pipelines.config import PipelineConfig
from pipelines.errors import HaltError

# As long as a service manager waits (deployment/systemd).
_PATIENCE = timedelta(seconds=120)


def stop_runners_of(config: PipelineConfig, legs: Collection[str] | None = None) -> int:
    """Stop the runners of a pipeline, or those of `legs`, and return how many there were; Dagster's sensor starts none again.

    Raise HaltError for one that still works after two minutes.
    """
    from pipelines.control.control import last_words, note_stop, stop_runners

    directory = directory_of(config)
    note_stop(directory, legs)
    count, left = stop_runners(directory, legs, _PATIENCE)
    if left:
        raise HaltError(
            f"stopping: {last_words(directory, left)} did not end within {_PATIENCE.total_seconds():.0f} s; end it with kill -9, nothing "
            "is lost"
        )
    return count
