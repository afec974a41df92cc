"""The program with which a plan must be finished, stored on the ledger.

It is published once per version under `ledger.config.<version>`; plans name the version, so a range that one program began is never
finished by another. Connections and secrets are not part of it.
"""

import hashlib
import json
from contextlib import suppress

from pipelines.engine.connections import Connections
from pipelines.errors import ConflictError, HaltError
from pipelines.process.program import RELEASE, Program
from pipelines.protocol.ledger import Log
from pipelines.protocol.naming import Names


def store(log: Log, names: Names, config: Program) -> str:
    """Publish the configuration under its version, once; return the version."""
    subject = names.config(config.version)
    if log.last(names.stream("ledger"), subject) is None:
        # Another start may store the same bytes between our lookup and our write.
        with suppress(ConflictError):
            log.publish(subject, config.encode(), {}, 0)
    return config.version


def load(log: Log, names: Names, version: str) -> Program:
    """Load the configuration that a plan or a frame names.

    Raise HaltError if it is missing, if its content does not match its version, or if this release would give it another meaning.
    """
    message = log.last(names.stream("ledger"), names.config(version))
    if message is None:
        raise HaltError(f"reading configuration {version}: it is not in {names.stream('ledger')}; restore the ledger stream from a backup")
    if hashlib.sha256(message.payload).hexdigest()[:16] != version:
        raise HaltError(
            f"reading configuration {version}: its content in {names.stream('ledger')} has another version; only Tallyflow may write to "
            "its streams: restore the ledger stream from a backup"
        )
    try:
        record = json.loads(message.payload)
        if record["release"] != RELEASE:
            raise HaltError(
                f"configuration {version} was written by release {record['release']} of the stages, this is {RELEASE}: "
                "start the older version once with --until-caught-up, then this one"
            )
        return Program.decode(record)
    except (KeyError, TypeError, ValueError) as error:
        raise HaltError(f"reading configuration {version}: {error}; only Tallyflow may write to its streams") from error


def config_of(connections: Connections, version: str) -> Program:
    """Return `load`'s configuration of a version as its sink sees it, read from the ledger once for these connections."""
    leg = connections.config.sink_leg
    return connections.keep(("stage config", version), lambda: load(connections.log, connections.names, version).seen_from(leg))
