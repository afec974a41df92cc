"""The passwords of the local servers: random, made at the first `up`, then kept readable for their owner only."""

import json
import secrets
from collections.abc import Iterable
from pathlib import Path

from pipelines.private import write_whole
from resources.local.ports import read_table

USER = "tallyflow"
"""User that logs in to Kafka and NATS; for ClickHouse it is `default`, the clients' own default."""


def read_passwords(path: Path) -> dict[str, str]:
    """Read the passwords kept in `path`, by server, as `read_table` does."""
    remedy = "stop the servers, delete it and run `tallyflow up` for new passwords"
    return read_table(path, "passwords", lambda password: isinstance(password, str) and password != "", remedy)


def keep_passwords(path: Path, names: Iterable[str]) -> dict[str, str]:
    """Return the kept passwords, with a random one for each name that has none yet; write `path` if any is new."""
    kept = read_passwords(path)
    missing = [name for name in names if name not in kept]
    for name in missing:
        # No character with a meaning in a URL, a shell, a .properties file or a JAAS configuration.
        kept[name] = secrets.token_hex(24)
    if missing:
        write_whole(path, json.dumps(kept, indent=2) + "\n")
    return kept
