"""The host: the meaning of its own errors, and how many files a process may open."""

import errno
import resource

import duckdb

from pipelines.errors import HaltError, TallyflowError

_REMEDIES = {
    errno.EMFILE: "this process may open no more files: raise its limit (LimitNOFILE= of the service, `ulimit -n`), or use fewer buckets",
    errno.ENFILE: "this host can open no more files: raise fs.file-max, or stop the process that holds so many",
    errno.ENOSPC: "the disk is full, or has no inodes left: make room",
    errno.EDQUOT: "the quota of this account is used up: make room, or raise it",
    errno.ENOMEM: "this host has no memory left: stop what uses it, or give this process more",
    errno.EIO: "the disk fails: look at the host's kernel log",
}
"""Errors that pass when somebody acts: the caller waits, and nothing is lost meanwhile."""
_REFUSALS = {
    errno.EACCES: "give this process the rights to it",
    errno.EPERM: "give this process the rights to it",
    errno.EROFS: "it is mounted read-only: repair the disk, or mount it writable",
}
_PHRASES = {
    "No space left on device": errno.ENOSPC,
    "Disk quota exceeded": errno.EDQUOT,
    "Too many open files": errno.EMFILE,
    "Cannot allocate memory": errno.ENOMEM,
}
"""Messages of glibc, as a JVM and its workers pass them on."""

RESERVED_FILES = 256
"""Files besides the key store: connections of three legs, Spark's sockets and pipes, libraries, clients of the status port."""
_MOST_FILES = 1024 * 1024
"""Linux's default `fs.nr_open`, the most that a process may have."""


def remedy(error: OSError) -> str:
    """Return what to do about an error of this host that passes; empty for any other."""
    return _REMEDIES.get(error.errno or 0, "")


def refusal(error: OSError) -> str:
    """Return what to do if this host denies access; empty for any other error."""
    return _REFUSALS.get(error.errno or 0, "")


def remedy_by_text(text: str) -> str:
    """Return the remedy, as `remedy` does, for the message of another process."""
    return next((_REMEDIES[number] for phrase, number in _PHRASES.items() if phrase in text), "")


def is_of_host(error: Exception) -> bool:
    """Return True for an error of this host, or one of ours with a remedy: the record in work is not its cause.

    A missing file is not such an error: it is a bug of the reader. DuckDB opens no files but its spill files.
    """
    if isinstance(error, OSError):
        return bool(remedy(error) or refusal(error) or (error.errno is None and remedy_by_text(str(error))))
    return isinstance(error, (TallyflowError, MemoryError, duckdb.IOException, duckdb.InterruptException))


def raise_file_limit(needed: int) -> int:
    """Raise the limit of open files of this process and its children as far as the host permits; return the limit.

    Raises HaltError if the limit is below `needed`.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        soft = most
    limit = most if soft == resource.RLIM_INFINITY else soft
    if limit < needed:
        raise HaltError(
            f"starting on this host: a process may open {limit} files here, this pipeline needs {needed}; raise the hard limit "
            "(LimitNOFILE= of the service, `ulimit -Hn`), or use fewer buckets (`tallyflow rebucket` once it has run)"
        )
    return limit
