"""Small files that must never be seen half written."""

import secrets
from pathlib import Path


def write_atomically(path: Path, text: str, mode: int = 0o644) -> None:
    """Replaces the file as a whole: a reader, or a crash in between, sees the old text or the new."""
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    part.touch(mode=mode, exist_ok=False)
    part.write_text(text)
    part.replace(path)
