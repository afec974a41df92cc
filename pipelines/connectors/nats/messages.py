"""What the server and the client say of a stored message, as one of ours."""

from datetime import UTC, datetime

from nats.aio.msg import Msg

from pipelines.protocol.records import Message

_DIRECT_HEADERS = {
    "Nats-Stream",
    "Nats-Subject",
    "Nats-Sequence",
    "Nats-Time-Stamp",
    "Nats-Num-Pending",
    "Nats-Last-Sequence",
    "Nats-UpTo-Sequence",
}


def instant(text: str) -> datetime:
    """RFC 3339 with nanoseconds, as the server writes it, cut to microseconds."""
    whole, _, fraction = text.rstrip("Z").partition(".")
    return datetime.fromisoformat(whole).replace(microsecond=int((fraction + "000000")[:6]), tzinfo=UTC)


def place(delivered: Msg) -> tuple[int, datetime]:
    """Stream sequence and time of a consumer's message, from its reply subject; cut to microseconds as `_instant` cuts.

    The client's own `metadata.timestamp` goes through a float and is a microsecond off at times: an arrival must be the same whichever
    way a frame was read. Tokens: ADR-15.
    """
    tokens = delivered.reply.split(".")
    sequence, nanoseconds = (tokens[5], tokens[7]) if len(tokens) == 9 else (tokens[7], tokens[9])
    seconds, rest = divmod(int(nanoseconds), 1_000_000_000)
    return int(sequence), datetime.fromtimestamp(seconds, UTC).replace(microsecond=rest // 1000)


def direct_message(reply: Msg) -> Message:
    headers = reply.headers or {}
    own = {name: value for name, value in headers.items() if name not in _DIRECT_HEADERS}
    return Message(headers["Nats-Subject"], int(headers["Nats-Sequence"]), instant(headers["Nats-Time-Stamp"]), reply.data, own)
