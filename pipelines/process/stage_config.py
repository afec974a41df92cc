"""The program with which a plan must be finished, stored on the ledger.

It is published once per version under `ledger.config.<version>`, and the code of its functions under `ledger.code.<sha256>`; plans name the
version, so a range that one program began is never finished by another. Connections and secrets are not part of it.
"""

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from functools import partial

from pipelines.engine.connections import Connections
from pipelines.errors import ConflictError, HaltError
from pipelines.functions.code import archive_of, is_kept, keep
from pipelines.lookups.storage import Snapshots
from pipelines.process.program import RELEASE, Program
from pipelines.protocol.ledger import Log
from pipelines.protocol.naming import Names

_RECENT_PROGRAMS = 4
"""Programs with snapshots that are kept: what a program derives from its steps is derived once."""


def store(log: Log, names: Names, config: Program) -> str:
    """Publish the configuration under its version, once, and before it the code that its steps run; return the version."""
    for digest in sorted(config.archives):
        _publish_once(log, names, names.code(digest), archive_of(digest))
    _publish_once(log, names, names.config(config.version), config.encode())
    return config.version


def _publish_once(log: Log, names: Names, subject: str, content: bytes) -> None:
    if log.last(names.stream("ledger"), subject) is None:
        # Another start may store the same bytes between our lookup and our write.
        with suppress(ConflictError):
            log.publish(subject, content, {}, 0)


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
        config = Program.decode(record)
    except (KeyError, TypeError, ValueError) as error:
        raise HaltError(f"reading configuration {version}: {error}; only Tallyflow may write to its streams") from error
    for digest in sorted(config.archives):
        load_code(log, names, digest)
    return config


def load_code(log: Log, names: Names, digest: str) -> None:
    """Keep the code of a digest in this process. Raise HaltError if it is missing, or is other code than the digest says."""
    if is_kept(digest):
        return
    message = log.last(names.stream("ledger"), names.code(digest))
    if message is None or hashlib.sha256(message.payload).hexdigest() != digest:
        found = "it is not there" if message is None else "other code is there; only Tallyflow may write to its streams"
        raise HaltError(f"reading the code {digest[:16]} from {names.stream('ledger')}: {found}; restore the ledger stream from a backup")
    keep(message.payload)


def planned(connections: Connections, version: str, lookups: Mapping[str, str]) -> Program:
    """Return the configuration of a version with the snapshots of a plan, `lookups` by table; each is opened at its first use."""
    program = config_of(connections, version)
    if not program.lookups:
        return program
    recent = connections.keep("planned programs", dict[tuple[str, frozenset[tuple[str, str]]], Program])
    key = version, frozenset(lookups.items())
    if key not in recent:
        while len(recent) >= _RECENT_PROGRAMS:
            recent.pop(next(iter(recent)))
        recent[key] = with_snapshots(program, connections.snapshots, lookups)
    return recent[key]


def with_snapshots(program: Program, snapshots: Snapshots, lookups: Mapping[str, str]) -> Program:
    """Return a program with the snapshots of a plan, `lookups` by table. Raise HaltError for a table of which none is named."""
    if not program.lookups:
        return program
    if missing := sorted(program.lookups.keys() - lookups.keys()):
        raise HaltError(f"configuration {program.version} looks up in table {missing[0]}, of which the plan names no snapshot")
    return program.with_snapshots({table: partial(snapshots.open, table, lookups[table]) for table in program.lookups})


def config_of(connections: Connections, version: str) -> Program:
    """Return `load`'s configuration of a version as its sink sees it, read from the ledger once for these connections."""
    leg = connections.config.sink_leg
    return connections.keep(("stage config", version), lambda: load(connections.log, connections.names, version).seen_from(leg))
