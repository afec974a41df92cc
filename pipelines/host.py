"""The host that we run on: what its own errors mean, how many files a process may have open, how often it looks for cyclic garbage."""

import errno
import gc
import resource

import duckdb

from pipelines.errors import HaltError, TallyflowError

_REMEDIES = {
    errno.EMFILE: "this process may open no more files: raise its limit (LimitNOFILE= of the service, `ulimit -n`), or take fewer buckets",
    errno.ENFILE: "this host can open no more files: raise fs.file-max, or end what holds so many",
    errno.ENOSPC: "the disk is full, or has no inodes left: make room",
    errno.EDQUOT: "the quota of this account is used up: make room, or raise it",
    errno.ENOMEM: "this host has no memory left: end what takes it, or give this process more",
    errno.EIO: "the disk fails: look at the host's kernel log",
}
"""What passes when somebody acts, and nothing is lost meanwhile: it is waited for."""
_REFUSALS = {
    errno.EACCES: "give this process the rights to it",
    errno.EPERM: "give this process the rights to it",
    errno.EROFS: "it is mounted read-only: mend the disk, or mount it for writing",
}
_WORDS = {
    "No space left on device": errno.ENOSPC,
    "Disk quota exceeded": errno.EDQUOT,
    "Too many open files": errno.EMFILE,
    "Cannot allocate memory": errno.ENOMEM,
}
"""As a JVM and its workers say it; glibc's words."""

RESERVED_FILES = 256
"""Besides the key store: connections of three legs, Spark's sockets and pipes, libraries, the status port's clients."""
COLLECT_AFTER_OBJECTS = 50_000
"""Ten polls of Kafka."""
_MOST_FILES = 1024 * 1024
"""Linux's default `fs.nr_open`: no process may have more."""


def remedy(error: OSError) -> str:
    """What to do about an error of this host that passes; empty for any other."""
    return _REMEDIES.get(error.errno or 0, "")


def refusal(error: OSError) -> str:
    """What to do where this host refuses us; empty for any other error."""
    return _REFUSALS.get(error.errno or 0, "")


def remedy_in_words(words: str) -> str:
    """As `remedy`, where only the words of another process are left."""
    return next((_REMEDIES[number] for said, number in _WORDS.items() if said in words), "")


def is_of_host(error: Exception) -> bool:
    """Whether an error is this host's, or one of ours that tells what to do: it has nothing to do with what was worked on.

    A file that is missing is no such error: whoever looks for it has the bug. DuckDB opens no file but those that it spills to.
    """
    if isinstance(error, OSError):
        return bool(remedy(error) or refusal(error) or (error.errno is None and remedy_in_words(str(error))))
    return isinstance(error, (TallyflowError, MemoryError, duckdb.IOException, duckdb.InterruptException))


def raise_file_limit(needed: int) -> int:
    """Lets this process, and those it starts, open as many files as the host permits; how many that is.

    Raises HaltError when that is less than `needed`.
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
            "(LimitNOFILE= of the service, `ulimit -Hn`), or take fewer buckets (`tallyflow rebucket` once it has run)"
        )
    return limit


def collect_rarely() -> None:
    """Let Python's cyclic collector look at new objects only, and rarely: call it once, when the process is ready for its first batch.

    A poll of Kafka makes a thousand objects a millisecond, none of them in a cycle; by default each 700 of them are looked at again, and
    now and then everything that was imported.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER_OBJECTS, 20, 100)
