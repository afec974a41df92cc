"""Where snapshots are kept: a file for each, named by the SHA-256 of its bytes, below the state place of the pipeline.

A file is never changed. It goes when no plan names it any more (`runner.lookups`). Its content is compared with its name when it is
opened, so a plan is finished with exactly the rows with which it was begun, in whatever process.
"""

import hashlib
import json
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from io import RawIOBase
from typing import Any

import pyarrow as pa

from pipelines.errors import HaltError
from pipelines.key_store.storage import Storage
from pipelines.lookups.snapshot import Snapshot
from pipelines.lookups.spec import TableSpec, spec_of
from pipelines.protocol.naming import lookup_storage

_SUFFIX = ".arrow"
_MOST_OPEN = 8
"""Snapshots that a process keeps open; verification reads those of many plans."""


@dataclass(frozen=True)
class Stored:
    """A snapshot that is durable."""

    digest: str
    rows: int
    bytes: int


class Snapshots:
    """The snapshots of a pipeline's look-up tables. `state_storage`: the directory or URI of the state."""

    def __init__(self, state_storage: str) -> None:
        self._state_storage = state_storage
        self._open: OrderedDict[tuple[str, str], Snapshot] = OrderedDict()
        self._storages: dict[str, Storage] = {}
        self._whole: set[tuple[str, str]] = set()
        """Files that this process has written, or read as a whole."""

    def put(self, table: str, spec: TableSpec, rows: pa.RecordBatch) -> Stored:
        """Keep a snapshot, durable on return; a killed earlier attempt at it is replaced. Raise RetryableError while the place is away."""
        header = {b"spec": json.dumps(spec.encode(), sort_keys=True).encode()}
        digest, size = _digest_of(rows, header)
        storage = self._storage(table)
        if (table, digest) not in self._whole:
            try:
                storage.write(digest + _SUFFIX, rows, header)
            except FileExistsError:
                if not self._is_whole(table, digest):
                    storage.delete(digest + _SUFFIX)
                    storage.write(digest + _SUFFIX, rows, header)
            self._whole.add((table, digest))
        return Stored(digest, rows.num_rows, size)

    def open(self, table: str, digest: str) -> Snapshot:
        """Return a snapshot by its digest. Raise HaltError if it is missing or damaged, RetryableError while the place is away."""
        key = table, digest
        if key not in self._open:
            self._open[key] = self._read(table, digest)
            while len(self._open) > _MOST_OPEN:
                self._open.popitem(last=False)
        self._open.move_to_end(key)
        return self._open[key]

    def has(self, table: str, digest: str) -> bool:
        """Return whether the file of a snapshot is there."""
        return self._storage(table).size(digest + _SUFFIX) > 0

    def digests(self, table: str) -> list[str]:
        """Return the digests of the snapshots that are kept of a table."""
        return [name.removesuffix(_SUFFIX) for name in self._storage(table).names() if name.endswith(_SUFFIX)]

    def delete(self, table: str, digests: Iterable[str]) -> None:
        """Delete snapshots, if they exist."""
        for digest in digests:
            self._storage(table).delete(digest + _SUFFIX)
            self._whole.discard((table, digest))

    def _storage(self, table: str) -> Storage:
        if table not in self._storages:
            self._storages[table] = Storage.at(lookup_storage(self._state_storage, table))
        return self._storages[table]

    def _is_whole(self, table: str, digest: str) -> bool:
        return hashlib.sha256(self._storage(table).content(digest + _SUFFIX)).hexdigest() == digest

    def _read(self, table: str, digest: str) -> Snapshot:
        storage, doing = self._storage(table), f"reading the snapshot {digest[:16]} of table {table}"
        remedy = (
            "a plan is finished with the snapshot with which it was begun: restore the file from a backup. If the table still holds the "
            "same rows, the next start of the pipeline makes it again"
        )
        try:
            content = storage.content(digest + _SUFFIX)
        except FileNotFoundError:
            raise HaltError(f"{doing}: it is not in {storage.path}; {remedy}") from None
        if hashlib.sha256(content).hexdigest() != digest:
            raise HaltError(f"{doing}: its file in {storage.path} is damaged; delete it, and {remedy}")
        rows, header = pa.ipc.open_file(content).get_batch_with_custom_metadata(0)
        self._whole.add((table, digest))
        return Snapshot(spec_of(json.loads(header[b"spec"])), rows)


class _Hashing(RawIOBase):
    """A file of which only digest and size are kept."""

    def __init__(self) -> None:
        self.digest, self.size = hashlib.sha256(), 0

    def writable(self) -> bool:
        return True

    def write(self, content: Any) -> int:
        self.digest.update(content)
        size = memoryview(content).nbytes
        self.size += size
        return size


def _digest_of(rows: pa.RecordBatch, header: dict[bytes, bytes]) -> tuple[str, int]:
    """Return the SHA-256 and the size of the file that `Storage.write` writes."""
    sink = _Hashing()
    with pa.ipc.new_file(pa.PythonFile(sink, "w"), rows.schema) as writer:
        writer.write_batch(rows, custom_metadata=header)
    return sink.digest.hexdigest(), sink.size
