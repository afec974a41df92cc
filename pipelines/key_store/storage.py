"""Storage of the segments of one bucket: a directory on this machine, or one of any pyarrow filesystem, such as an object store."""

import os
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from mmap import ACCESS_READ, mmap
from pathlib import Path

import pyarrow as pa
from pyarrow import fs

from pipelines.errors import HaltError, RetryableError
from pipelines.host import refusal, remedy
from pipelines.private import sync_directory

_ALLOW = "give this process the rights to it"
_NO_BUCKET = "there is no such bucket: make it, or correct state_uri"
# AWS gives its code only in the text.
_REFUSALS = {
    "ACCESS_DENIED": _ALLOW,
    "INVALID_ACCESS_KEY_ID": _ALLOW,
    "SIGNATURE_DOES_NOT_MATCH": _ALLOW,
    "NO_SUCH_BUCKET": _NO_BUCKET,
}
Header = dict[bytes, bytes]


@dataclass(frozen=True)
class Storage:
    """A directory. Files are written once, under new names; nothing is renamed or changed.

    Every method raises RetryableError if the file system is away or full, HaltError if it denies access.
    """

    filesystem: fs.FileSystem
    path: str

    @classmethod
    def local(cls, directory: Path) -> "Storage":
        return cls(fs.LocalFileSystem(), str(directory))

    @classmethod
    def at(cls, uri: str) -> "Storage":
        """Open a directory of this machine, or a URI of pyarrow's file systems. Raise HaltError for a URI that none of them can read."""
        if "://" not in uri:
            return cls.local(Path(uri))
        address = uri.partition("?")[0]
        with _reaching(address):
            try:
                return cls(*fs.FileSystem.from_uri(uri))
            except (pa.ArrowInvalid, NotImplementedError) as error:
                raise HaltError(f"opening the key store at {address}: {error}; correct state_uri") from error

    @property
    def is_local(self) -> bool:
        return isinstance(self.filesystem, fs.LocalFileSystem)

    @property
    def _is_s3(self) -> bool:
        return bool(self.filesystem.type_name == "s3")

    def check(self) -> None:
        """Look at the storage. Raise HaltError if its bucket does not exist: a listing of a missing bucket is as empty as a new one's."""
        self.names()
        if not self._is_s3:
            return
        bucket = self.path.partition("/")[0]
        with _reaching(self.path):
            found = self.filesystem.get_file_info(bucket)
        if found.type == fs.FileType.NotFound:
            raise HaltError(f"reaching the key store at {self.path}: bucket {bucket}: {_NO_BUCKET}")

    def write(self, name: str, batch: pa.RecordBatch, header: Header) -> None:
        """Write an Arrow IPC file of one batch with `header` as the batch's metadata; file and name are durable on return.

        On this machine this takes an fsync of the file and of the directory; an object store has the whole object or none.
        Raises FileExistsError if the name is taken.
        """
        path = f"{self.path}/{name}"
        with _reaching(self.path):
            if self.is_local:
                self._write_local(name, batch, header)
                return
            if self.filesystem.get_file_info(path).type != fs.FileType.NotFound:
                raise FileExistsError(path)
            if not self._is_s3:
                # S3 has none: this would take half the time of a write, and wait for a missing bucket.
                self.filesystem.create_dir(self.path, recursive=True)
            begun = _whole_or_none(lambda: self.filesystem.delete_file(path))
            with begun, self.filesystem.open_output_stream(path) as stream, pa.ipc.new_file(stream, batch.schema) as writer:
                writer.write_batch(batch, custom_metadata=header)

    def _write_local(self, name: str, batch: pa.RecordBatch, header: Header) -> None:
        directory = Path(self.path)
        if not directory.is_dir():
            directory.mkdir(parents=True, exist_ok=True)
        # Arrow's own file takes half the time of Python's, but cannot refuse a name that is taken.
        with (directory / name).open("xb", buffering=0) as file, _whole_or_none((directory / name).unlink):
            with pa.OSFile(file.name, "wb") as stream, pa.ipc.new_file(stream, batch.schema) as writer:
                writer.write_batch(batch, custom_metadata=header)
            os.fsync(file.fileno())
            sync_directory(directory)

    def read(self, name: str) -> tuple[pa.RecordBatch, Header]:
        """Read the batch and its header, memory-mapped if the file is on this machine.

        Raises FileNotFoundError for a missing file, and ValueError, OSError without a number or an Arrow error for a file that is not ours.
        """
        batch, header = pa.ipc.open_file(self.content(name)).get_batch_with_custom_metadata(0)
        return batch, dict(header or {})

    def content(self, name: str) -> pa.Buffer:
        """Return the bytes of a file, memory-mapped if it is on this machine. Raises FileNotFoundError for a missing file."""
        path = f"{self.path}/{name}"
        if self.is_local:
            # Python's own: pyarrow's memory_map takes 70 us more per file.
            with _reaching(self.path), Path(path).open("rb") as file:
                if not os.fstat(file.fileno()).st_size:
                    # A killed writer may have left nothing, which cannot be mapped.
                    return pa.py_buffer(b"")
                return pa.py_buffer(mmap(file.fileno(), 0, access=ACCESS_READ))
        with _reaching(self.path), self.filesystem.open_input_file(path) as file:
            return file.read_buffer()

    def names(self) -> list[str]:
        """List the existing files, sorted."""
        with _reaching(self.path):
            found = self.filesystem.get_file_info(fs.FileSelector(self.path, allow_not_found=True))
        return sorted(info.base_name for info in found if info.type == fs.FileType.File)

    def size(self, name: str) -> int:
        """Return the bytes of the file; 0 if it does not exist."""
        with _reaching(self.path):
            return self.filesystem.get_file_info(f"{self.path}/{name}").size or 0

    def delete(self, name: str) -> None:
        """Delete the file, if it exists."""
        path = f"{self.path}/{name}"
        with _reaching(self.path):
            if self.filesystem.get_file_info(path).type != fs.FileType.NotFound:
                self.filesystem.delete_file(path)

    def delete_all(self) -> None:
        """Delete the directory with its content, if it exists."""
        with _reaching(self.path):
            if self.filesystem.get_file_info(self.path).type != fs.FileType.NotFound:
                self.filesystem.delete_dir(self.path)

    def has_copy(self, name: str) -> bool:
        """Return whether `read` would read a copy of this host, which may be damaged while the file is not."""
        return False

    def discard_copy(self, name: str) -> None:
        """Delete this host's copy of a file."""

    def discard_copies(self, keep: Collection[str] = ()) -> None:
        """Delete this host's copies of all other files than `keep`."""


@contextmanager
def _whole_or_none(remove: Callable[[], None]) -> Iterator[None]:
    """Remove an unfinished file if the block fails: on a full disk it would take up space."""
    try:
        yield
    except BaseException:
        with suppress(OSError):
            remove()
        raise


@contextmanager
def _reaching(where: str) -> Iterator[None]:
    try:
        yield
    except (FileNotFoundError, FileExistsError):
        raise
    except OSError as error:
        refused = refusal(error) or next((to_do for code, to_do in _REFUSALS.items() if code in str(error)), "")
        doing, to_do = f"reaching the key store at {where}: {error}", refused or remedy(error)
        raise (HaltError if refused else RetryableError)(f"{doing}; {to_do}" if to_do else doing) from error
