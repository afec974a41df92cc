"""The state between the requests of one ClickHouse session: its SET and USE statements, run again before each later statement."""

import threading
import time
from collections import OrderedDict
from datetime import timedelta

_MAX_SESSIONS = 1000
_MAX_STATEMENTS = 100


class SessionTable:
    """The sessions. Thread-safe. A session ends when it is not used for its time-out, or when 1000 newer ones exist."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sessions: OrderedDict[tuple[str, str], tuple[float, tuple[str, ...]]] = OrderedDict()

    def statements(self, user: str, session: str, timeout: timedelta) -> tuple[str, ...]:
        """Return the statements to run first; none for a new or expired session. Sessions of different users are different."""
        now = time.monotonic()
        with self._lock:
            deadline, found = self._sessions.pop((user, session), (now, ()))
            if not found or deadline < now:
                return ()
            self._sessions[user, session] = now + timeout.total_seconds(), found
            return found

    def add(self, user: str, session: str, timeout: timedelta, statement: str) -> None:
        """Keep a statement that has run without error."""
        found = self.statements(user, session, timeout)
        with self._lock:
            self._sessions[user, session] = time.monotonic() + timeout.total_seconds(), (*found, statement)[-_MAX_STATEMENTS:]
            while len(self._sessions) > _MAX_SESSIONS:
                self._sessions.popitem(last=False)
