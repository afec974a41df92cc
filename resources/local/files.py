"""Small files that must never be seen half written, and by nobody but their owner."""

import secrets
from pathlib import Path


def write_atomically(path: Path, text: str) -> None:
    """Replaces the file as a whole: a reader, or a crash in between, sees the old text or the new. Only its owner can read it."""
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    part.touch(mode=0o600, exist_ok=False)
    part.write_text(text)
    part.replace(path)
