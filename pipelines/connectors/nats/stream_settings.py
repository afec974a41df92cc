"""Which settings of a stream that is there already the pipeline cannot rest on: those that remove what was acknowledged."""

from nats.js import api

from pipelines.errors import HaltError


def check_stream(config: api.StreamConfig, subjects: str) -> None:
    """Raises HaltError for a stream that somebody has made, or changed, so that the pipeline could not rest on it."""
    faults = stream_faults(config, subjects)
    if faults:
        remedies = "; ".join(dict.fromkeys(remedy for _, remedy in faults)).replace("STREAM", str(config.name))
        raise HaltError(
            f"checking stream {config.name}: {'; '.join(fault for fault, _ in faults)}. What it acknowledged could go before it was read. "
            f"{remedies}"
        )


def stream_faults(config: api.StreamConfig, subjects: str) -> list[tuple[str, str]]:
    """(what is wrong with the settings of one of our streams, what to do about it); STREAM stands for its name."""
    anew = "delete the pipeline and start it anew: it makes its streams itself"
    rules = [
        (config.discard != api.DiscardPolicy.NEW, "a full stream discards old messages", "run `nats stream edit STREAM --discard=new`"),
        (bool(config.max_age), f"messages go after {config.max_age:g} s", "run `nats stream edit STREAM --max-age=0`"),
        ((config.max_msgs or -1) > 0, f"it keeps {config.max_msgs} messages", "run `nats stream edit STREAM --max-msgs=-1`"),
        (
            (config.max_msgs_per_subject or -1) > 0,
            f"it keeps {config.max_msgs_per_subject} messages of a subject",
            "run `nats stream edit STREAM --max-msgs-per-subject=-1`",
        ),
        (config.storage == api.StorageType.MEMORY, "it is in memory only", anew),
        (config.retention != api.RetentionPolicy.LIMITS, f"its retention is {config.retention}", anew),
        (list(config.subjects or []) != [subjects], f"its subjects are {config.subjects}, not {subjects}", anew),
        (not config.allow_direct, "it allows no direct gets", "run `nats stream edit STREAM --allow-direct`"),
    ]
    return [(fault, remedy) for is_wrong, fault, remedy in rules if is_wrong]
