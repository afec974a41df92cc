"""Copies of segments on this host's disk, before a storage that other hosts reach too: it is asked for a segment once per host.

Segments never change and no name is used twice, so a copy is never stale. It is no second store: what a `done` lists was durable in the
storage behind it first. A copy that is missing or damaged is read from there again.
"""

import os
import tempfile
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import pyarrow as pa

from pipelines.errors import HaltError, RetryableError
from pipelines.host import remedy
from pipelines.key_store.storage import Header, Storage
from pipelines.private import OWNER_ONLY, private_directory

WORTH_KEEPING_BYTES = 256 * 1024
"""A smaller segment is soon merged with others, and is read from memory until then."""


@dataclass(frozen=True)
class CachedStorage(Storage):
    """A storage with copies in `near`, a directory of this host. `note`: is told why a copy was left out."""

    near: Storage
    note: Callable[[str], None]

    @classmethod
    def before(cls, storage: Storage, note: Callable[[str], None]) -> "CachedStorage":
        """Return the storage with copies in Spark's local directory, which ends with the executor."""
        place = sha256(f"{storage.filesystem.type_name} {storage.path}".encode()).hexdigest()[:24]
        return cls(storage.filesystem, storage.path, Storage.local(_own_directory() / place), note)

    def write(self, name: str, batch: pa.RecordBatch, header: Header) -> None:
        super().write(name, batch, header)
        self._keep(name, batch, header)

    def read(self, name: str) -> tuple[pa.RecordBatch, Header]:
        with suppress(FileNotFoundError):
            return self.near.read(name)
        batch, header = super().read(name)
        self._keep(name, batch, header)
        return batch, header

    def _keep(self, name: str, batch: pa.RecordBatch, header: Header) -> None:
        """Keep a copy, unless this host's disk has no room for it: the segment itself is durable."""
        if batch.nbytes < WORTH_KEEPING_BYTES:
            return
        try:
            # Another process of this host may have copied it meanwhile.
            with suppress(FileExistsError):
                self.near.write(name, batch, header)
        except RetryableError as error:
            cause = error.__cause__
            reason = remedy(cause) if isinstance(cause, OSError) else str(error)
            self.note(f"no copies of segments in {Path(self.near.path).parent}, each is read from the shared storage: {reason}")

    def delete(self, name: str) -> None:
        self.near.delete(name)
        super().delete(name)

    def delete_all(self) -> None:
        self.near.delete_all()
        super().delete_all()

    def has_copy(self, name: str) -> bool:
        return self.near.size(name) > 0

    def discard_copy(self, name: str) -> None:
        self.near.delete(name)

    def discard_copies(self, keep: Collection[str] = ()) -> None:
        for name in self.near.names():
            if name not in keep:
                self.near.delete(name)


def _own_directory() -> Path:
    """Return the directory of this user's copies. Raise HaltError if another user could have written there."""
    roots = os.environ.get("SPARK_LOCAL_DIRS") or os.environ.get("LOCAL_DIRS") or tempfile.gettempdir()
    path = Path(roots.split(",")[0]) / f"tallyflow-keys-{os.geteuid()}"
    private_directory(path)
    found = path.lstat()
    if found.st_uid != os.geteuid() or found.st_mode & OWNER_ONLY or path.is_symlink():
        raise HaltError(f"keeping copies of the key store in {path}: it belongs to somebody else; remove it, or set SPARK_LOCAL_DIRS")
    return path
