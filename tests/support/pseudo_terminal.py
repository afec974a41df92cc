"""A command on a terminal of its own: what it shows there, as text without the terminal's own orders, and keys that are pressed."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import termios
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

_ORDERS = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[=>]")
"""Escape sequences of ECMA-48: colours, moves of the cursor, what is cleared."""


class PseudoTerminal:
    """A process whose stdin, stdout and stderr are a terminal of so many columns."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str], cwd: Path, columns: int = 80) -> None:
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        self._shown: list[bytes] = []
        environment = {**env, "TERM": "xterm-256color"}
        # A session of its own with this terminal, so that Ctrl-C reaches it as a user's does.
        self.process = subprocess.Popen(
            ["setsid", "--ctty", "--wait", *command], stdin=theirs, stdout=theirs, stderr=theirs, env=environment, cwd=cwd, text=True
        )
        os.close(theirs)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        while True:
            try:
                found = os.read(self._ours, 65536)
            except OSError:
                # The last process that had the terminal has ended.
                return
            if not found:
                return
            self._shown.append(found)

    @property
    def text(self) -> str:
        """All that was ever shown, in the order in which it was written."""
        return _ORDERS.sub("", b"".join(self._shown).decode("utf-8", "replace"))

    @property
    def lines(self) -> list[str]:
        """Every line that was ever shown, each state of a line that was written again."""
        return [line for line in re.split(r"[\r\n]+", self.text) if line.strip()]

    def press(self, keys: bytes) -> None:
        os.write(self._ours, keys)

    def wait(self, seconds: float) -> int:
        code = self.process.wait(seconds)
        self._reader.join(10)
        os.close(self._ours)
        return code
