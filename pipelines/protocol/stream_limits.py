"""The size limits of frames, and the resulting minimum sizes of limited streams. Bytes."""

MAX_FRAME_BYTES = 992 * 1024
"""Upper bound of an encoded frame: a record of 1,000,000 bytes, and what a dead letter of it says besides."""
LEAST_PAYLOAD_BYTES = MAX_FRAME_BYTES + 16 * 1024
"""What a server must take as one message, a frame and its headers. NATS's default `max_payload` is 1 MiB."""
MAX_CONTENT_BYTES = 8 * 1024 * 1024
"""Upper bound of the decoded size of a frame with more than one row.

Repetitive records are packed 250:1; a reader of a frame must have room for all of it.
"""
ROOM_BYTES = 4 * MAX_FRAME_BYTES
"""A limited stream is purged before the retention if less than this is free, or less than a fifth of its limit."""
LEAST_LIMIT_BYTES = ROOM_BYTES + 3 * MAX_FRAME_BYTES
"""Minimum limit of raw, for one partition: with less, dead letters may never be redriven.

It covers the room that is left to ingest, the last frames of its subject and of redriven dead letters, which no purge removes, and one
incoming frame.
"""


def bytes_kept_of_out(buckets: int) -> int:
    """Return the possible size of the last frame of every bucket, which no purge removes, and one incoming frame."""
    return (buckets + 1) * MAX_FRAME_BYTES
