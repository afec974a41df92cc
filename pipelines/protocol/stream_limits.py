"""How large a frame may be, and so what a stream with a limit needs. Bytes."""

MAX_FRAME_BYTES = 512 * 1024
"""Upper bound of an encoded frame; half of NATS's default `max_payload`, so headers and a foreign server's limit have room."""
MAX_CONTENT_BYTES = 8 * 1024 * 1024
"""Upper bound of what a frame of more than one row takes decoded. Records that repeat themselves are packed 250:1; who reads a frame must
have room for all of it."""
ROOM_BYTES = 4 * MAX_FRAME_BYTES
"""A limited stream is purged before the retention when less than this is free, or less than a fifth of its limit."""
LEAST_LIMIT_BYTES = ROOM_BYTES + 3 * MAX_FRAME_BYTES
"""Of raw, for one partition: the room that is left to ingest, the last frame of its subject and of the letters that entered again, which
stay whatever is purged, and one frame that comes in. With less, dead letters may never enter again."""


def bytes_kept_of_out(buckets: int) -> int:
    """What the last frame of every bucket may take, which stays whatever is purged, and one frame that comes in."""
    return (buckets + 1) * MAX_FRAME_BYTES
