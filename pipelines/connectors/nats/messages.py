"""Stored messages of the server and the client as our `Message`."""

from base64 import b64decode
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from nats.aio.msg import Msg

from pipelines.connectors.nats.wire import Reply, parsed_headers
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
    """Parse RFC 3339 with nanoseconds, as the server writes it; truncate to microseconds."""
    whole, _, fraction = text.rstrip("Z").partition(".")
    return datetime.fromisoformat(whole).replace(microsecond=int((fraction + "000000")[:6]), tzinfo=UTC)


def sequence_and_time(delivered: Msg) -> tuple[int, datetime]:
    """Return stream sequence and time of a consumer's message from its reply subject, truncated to microseconds as `instant` does.

    The client's own `metadata.timestamp` is computed as a float and is sometimes a microsecond off: an arrival must not depend on the way a
    frame was read. Tokens: ADR-15.
    """
    tokens = delivered.reply.split(".")
    sequence, nanoseconds = (tokens[5], tokens[7]) if len(tokens) == 9 else (tokens[7], tokens[9])
    seconds, rest = divmod(int(nanoseconds), 1_000_000_000)
    return int(sequence), datetime.fromtimestamp(seconds, UTC).replace(microsecond=rest // 1000)


def stored_message(told: Mapping[str, Any]) -> Message:
    """Return a message as the answer of the stream's leader holds it."""
    headers = parsed_headers(b64decode(told["hdrs"])) if "hdrs" in told else {}
    return Message(told["subject"], told["seq"], instant(told["time"]), b64decode(told.get("data", "")), headers)


def direct_message(reply: Msg | Reply) -> Message:
    headers = reply.headers or {}
    own = {name: value for name, value in headers.items() if name not in _DIRECT_HEADERS}
    return Message(headers["Nats-Subject"], int(headers["Nats-Sequence"]), instant(headers["Nats-Time-Stamp"]), reply.data, own)
