"""The code of functions: source files as one archive, the same bytes for the same files, known by its SHA-256.

In: the files below the directory of a pipeline file, or an archive from the ledger. Out: the archive, or its files in a directory. Kept:
the archives that this process has read, by digest, so that a program needs to hold digests only.
"""

import hashlib
import io
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

from pipelines.errors import HaltError

MAX_ARCHIVE_BYTES = 400 * 1024
"""Limit of an archive: it is one message of NATS, whose default limit is 1 MiB."""
MAX_UNPACKED_BYTES = 8 * 1024 * 1024
_TIME = (1980, 1, 1, 0, 0, 0)
"""The oldest time that an archive can hold."""
_archives: dict[str, bytes] = {}


def pack(directory: Path, module: str, files: Sequence[str]) -> str:
    """Archive the source files of `module` below `directory` and further `files`; keep the archive and return its digest.

    The files of a module are its file, or all Python files of its package. Raise ValueError for a file that is missing or lies elsewhere,
    and for too large an archive.
    """
    names = sorted({_inside(directory, name) for name in (*_sources(directory, module), *files)})
    buffer = io.BytesIO()
    # Not compressed, which every build of zlib does in its own way; NATS compresses the ledger.
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name in names:
            archive.writestr(zipfile.ZipInfo(name, _TIME), _content(directory / name, name))
    if buffer.tell() > MAX_ARCHIVE_BYTES:
        size = f"its {len(names)} files take {buffer.tell():,} bytes as an archive, more than {MAX_ARCHIVE_BYTES:,}"
        raise ValueError(f"the code is too large: {size}; install the larger part as a package")
    return keep(buffer.getvalue())


def keep(archive: bytes) -> str:
    """Keep an archive in this process; return its digest."""
    digest = hashlib.sha256(archive).hexdigest()
    _archives[digest] = archive
    return digest


def is_kept(digest: str) -> bool:
    return digest in _archives


def archive_of(digest: str) -> bytes:
    """Return the archive of a digest. Raise HaltError unless this process has read it, with its program."""
    if digest not in _archives:
        raise HaltError(f"running a function: its code {digest[:16]} was not read; start the pipeline again")
    return _archives[digest]


def unpack(archive: bytes, directory: Path) -> None:
    """Write the files of an archive below `directory`, which is empty. Raise HaltError for an archive that `pack` cannot have written."""
    try:
        with zipfile.ZipFile(io.BytesIO(archive)) as opened:
            infos = opened.infolist()
            if sum(info.file_size for info in infos) > MAX_UNPACKED_BYTES:
                raise ValueError(f"its files take more than {MAX_UNPACKED_BYTES:,} bytes")
            for info in infos:
                path = directory / _safe(info.filename)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(opened.read(info))
    except (ValueError, zipfile.BadZipFile, NotImplementedError) as error:
        raise HaltError(f"unpacking the code of a function: {error}; only Tallyflow may write to its streams") from error


def _sources(directory: Path, module: str) -> Iterator[str]:
    """Yield the files of a module, relative to `directory`."""
    first, *_ = module.split(".")
    if (directory / first).is_dir():
        found = [path.relative_to(directory).as_posix() for path in sorted((directory / first).rglob("*.py"))]
    else:
        found = [f"{first}.py"] if (directory / f"{first}.py").is_file() else []
    if not found:
        raise ValueError(f"there is no {first}.py and no package {first} beside the pipeline file, in {directory.name or directory}")
    yield from found


def _inside(directory: Path, name: str) -> str:
    """Return the normal form of a file's name. Raise ValueError unless it is a file below `directory`."""
    path = _safe(name)
    if not (directory / path).resolve().is_relative_to(directory.resolve()):
        raise ValueError(f"the file {name!r} does not lie below the directory of the pipeline file")
    if not (directory / path).is_file():
        raise ValueError(f"there is no file {name!r} beside the pipeline file")
    return path.as_posix()


def _safe(name: str) -> PurePosixPath:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not path.parts or "\\" in name:
        raise ValueError(f"the file {name!r} must be named by its path below the directory of the pipeline file")
    return path


def _content(path: Path, name: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ValueError(f"the file {name!r} cannot be read: {error.strerror}") from error
