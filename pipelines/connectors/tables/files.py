"""The bytes of a look-up table's file, read as a whole before any of it is looked at: whoever replaces the file meanwhile mixes nothing."""

import pyarrow as pa
from pyarrow import fs

from pipelines.config.table_model import FileTable
from pipelines.connectors.tables import doing
from pipelines.errors import HaltError, RetryableError
from pipelines.host import refusal, remedy

_FILE_PER_TABLE_BYTES = 4
"""A file may be so many times larger than the columns that are read of it."""


def content_of(name: str, table: FileTable) -> pa.Buffer:
    """Return the bytes of the file. Raise HaltError for a file that is missing, denied or too large, RetryableError for other trouble."""
    try:
        place = table.place
        filesystem, path = fs.FileSystem.from_uri(place) if "://" in place else (fs.LocalFileSystem(), place)
    except (ValueError, NotImplementedError) as error:
        raise HaltError(f"{doing(name)}: {error}") from error
    try:
        info = filesystem.get_file_info(path)
        if info.type != fs.FileType.File:
            raise HaltError(f"{doing(name)}: there is no file {path}")
        if info.size > _FILE_PER_TABLE_BYTES * table.max_bytes:
            limit = f"{_FILE_PER_TABLE_BYTES} times max_bytes ({table.max_bytes:,})"
            raise HaltError(f"{doing(name)}: its file has {info.size:,} bytes, more than {limit}; raise the limit if that is intended")
        with filesystem.open_input_file(path) as file:
            return file.read_buffer()
    except FileNotFoundError as error:
        raise HaltError(f"{doing(name)}: there is no file {path}") from error
    except OSError as error:
        to_do = refusal(error) or remedy(error)
        kind = HaltError if refusal(error) else RetryableError
        raise kind(f"{doing(name)}, reading {path}: {error}{f'; {to_do}' if to_do else ''}") from error
