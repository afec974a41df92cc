"""Where the runs of one bucket lie: a directory on this machine, or one of any pyarrow filesystem, such as an object store."""

import os
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyarrow import fs


@dataclass(frozen=True)
class Place:
    """A directory. Files are written once, under names never used before; nothing is renamed or changed."""

    filesystem: fs.FileSystem
    path: str

    @classmethod
    def local(cls, directory: Path) -> "Place":
        return cls(fs.LocalFileSystem(), str(directory))

    @property
    def is_local(self) -> bool:
        return isinstance(self.filesystem, fs.LocalFileSystem)

    def write(self, name: str, table: pa.Table) -> None:
        """Writes the table as one Arrow IPC file of one batch; when this returns, the file and its name are durable.

        On this machine that takes an fsync of the file and of the directory; an object store has the whole object or none.
        Raises FileExistsError when the name is taken.
        """
        if self.is_local:
            self._write_local(name, table)
            return
        path = f"{self.path}/{name}"
        if self.filesystem.get_file_info(path).type != fs.FileType.NotFound:
            raise FileExistsError(path)
        self.filesystem.create_dir(self.path, recursive=True)
        with self.filesystem.open_output_stream(path) as stream, pa.ipc.new_file(stream, table.schema) as writer:
            writer.write_table(table)

    def _write_local(self, name: str, table: pa.Table) -> None:
        directory = Path(self.path)
        directory.mkdir(parents=True, exist_ok=True)
        with (directory / name).open("xb") as file:
            with pa.ipc.new_file(file, table.schema) as writer:
                writer.write_table(table)
            file.flush()
            os.fsync(file.fileno())
        descriptor = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def read(self, name: str) -> pa.Table:
        """The table, mapped into memory where the file is on this machine. Raises FileNotFoundError or another OSError, or ArrowInvalid."""
        path = f"{self.path}/{name}"
        source = pa.memory_map(path) if self.is_local else pa.BufferReader(self.filesystem.open_input_file(path).read_buffer())
        return pa.ipc.open_file(source).read_all()

    def names(self) -> list[str]:
        """The files that are there, sorted."""
        found = self.filesystem.get_file_info(fs.FileSelector(self.path, allow_not_found=True))
        return sorted(info.base_name for info in found if info.type == fs.FileType.File)

    def size(self, name: str) -> int:
        """Bytes of the file; 0 when it is gone."""
        return self.filesystem.get_file_info(f"{self.path}/{name}").size or 0

    def delete(self, name: str) -> None:
        """Deletes the file; one that is not there is gone already."""
        path = f"{self.path}/{name}"
        if self.filesystem.get_file_info(path).type != fs.FileType.NotFound:
            self.filesystem.delete_file(path)
