"""Checks of an existing stream's settings: the pipeline cannot use one that removes acknowledged messages."""

from nats.js import api

from pipelines.errors import HaltError


def check_stream(config: api.StreamConfig, subjects: str) -> None:
    """Raise HaltError for a stream whose settings somebody has changed so that the pipeline cannot use it."""
    faults = stream_faults(config, subjects)
    if faults:
        remedies = "; ".join(dict.fromkeys(remedy for _, remedy in faults)).replace("STREAM", str(config.name))
        raise HaltError(
            f"checking stream {config.name}: {'; '.join(fault for fault, _ in faults)}. "
            f"Acknowledged messages could be removed before they are read. {remedies}"
        )


def stream_faults(config: api.StreamConfig, subjects: str) -> list[tuple[str, str]]:
    """List (fault, remedy) for the settings of one of our streams; STREAM stands for its name."""
    anew = "delete the pipeline and start it anew: it creates its streams itself"
    rules = [
        (config.discard != api.DiscardPolicy.NEW, "a full stream discards old messages", "run `nats stream edit STREAM --discard=new`"),
        (bool(config.max_age), f"messages expire after {config.max_age:g} s", "run `nats stream edit STREAM --max-age=0`"),
        ((config.max_msgs or -1) > 0, f"it keeps only {config.max_msgs} messages", "run `nats stream edit STREAM --max-msgs=-1`"),
        (
            (config.max_msgs_per_subject or -1) > 0,
            f"it keeps only {config.max_msgs_per_subject} messages per subject",
            "run `nats stream edit STREAM --max-msgs-per-subject=-1`",
        ),
        (config.storage == api.StorageType.MEMORY, "it is stored in memory only", anew),
        (config.retention != api.RetentionPolicy.LIMITS, f"its retention is {config.retention}", anew),
        (list(config.subjects or []) != [subjects], f"its subjects are {config.subjects}, not {subjects}", anew),
        (not config.allow_direct, "it allows no direct gets", "run `nats stream edit STREAM --allow-direct`"),
    ]
    return [(fault, remedy) for is_wrong, fault, remedy in rules if is_wrong]
