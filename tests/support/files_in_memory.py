"""Where tests keep files that need not outlive the machine: to write and to delete them on a disk takes CPU, and waits."""

import os

MEMORY = "/dev/shm"


def directory_in_memory(room_bytes: int) -> str | None:
    """None where that is missing, has no such room, or takes no programs, as in many containers."""
    if not os.access(MEMORY, os.W_OK | os.X_OK):
        return None
    facts = os.statvfs(MEMORY)
    is_fit = facts.f_bavail * facts.f_frsize >= room_bytes and not facts.f_flag & os.ST_NOEXEC
    return MEMORY if is_fit else None
