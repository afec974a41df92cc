"""Libraries of our own C sources, which make a step cheaper where they are and are never needed.

`make` and `tallyflow prepare` build them with the host's C compiler, for this Python environment. A file's name covers the sources and the
platform, so a library of other sources is never loaded. `python -m pipelines.native_library` builds all.
"""

import ctypes
import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_FLAGS = ("-O2", "-std=c11", "-fPIC", "-shared", "-fvisibility=hidden")
_BUILD_SECONDS = 120


@dataclass(frozen=True)
class NativeLibrary:
    """The library `name`, whose sources are all .c and .h files of `sources`."""

    name: str
    sources: Path

    def path(self) -> Path:
        """Return the place of the library for this environment, whether it is there or not."""
        return Path(sys.prefix) / "share" / "tallyflow" / f"{self.name}-{_digest(self.sources)}.so"

    def load(self) -> ctypes.CDLL | None:
        """Return the library; None if it was not built, or, with a warning, if this host cannot load it."""
        path = self.path()
        return _load(path) if path.exists() else None

    def build(self, flags: Sequence[str] = ()) -> str:
        """Build the library unless it is there; return why that is not possible, empty if it is there now."""
        path = self.path()
        if path.exists():
            return ""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
                made = Path(scratch) / path.name
                fault = self.compile(made, flags)
                if not fault:
                    made.replace(path)
                return fault
        except OSError as error:
            return f"{path.parent} cannot be written to: {error.strerror}"

    def compile(self, target: Path, flags: Sequence[str] = ()) -> str:
        """Compile the sources to `target`, with further `flags`; return the fault, empty without one."""
        compiler = shlex.split(os.environ.get("CC", "")) or ["cc"]
        if shutil.which(compiler[0]) is None:
            return f"there is no C compiler {compiler[0]!r} (for example the package gcc)"
        command = [*compiler, *_FLAGS, *flags, *(str(path) for path in sorted(self.sources.glob("*.c"))), "-o", str(target)]
        try:
            ended = subprocess.run(command, capture_output=True, text=True, timeout=_BUILD_SECONDS, stdin=subprocess.DEVNULL)  # noqa: S603
        except subprocess.TimeoutExpired:
            return f"{compiler[0]} was not through after {_BUILD_SECONDS} s"
        return "" if ended.returncode == 0 else f"{compiler[0]} ended with {ended.returncode}: {ended.stderr[:500].strip()}"


@cache
def _digest(sources: Path) -> str:
    found = hashlib.sha256(" ".join((sysconfig.get_platform(), *_FLAGS)).encode())
    for path in sorted(sources.glob("*.[ch]")):
        found.update(path.read_bytes())
    return found.hexdigest()[:16]


@cache
def _load(path: Path) -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        warnings.warn(f"{path} cannot be loaded, what it does costs more CPU: {error}", RuntimeWarning, stacklevel=2)
        return None


JSON_READER = NativeLibrary("json-reader", Path(__file__).parent / "process" / "steps" / "parse" / "native")
KAFKA_READER = NativeLibrary("kafka-reader", Path(__file__).parent / "connectors" / "kafka" / "native")


def build_all() -> list[str]:
    """Build what is missing; return a line for each library that cannot be built."""
    faults = {
        "JSON is read by DuckDB, which takes more CPU": JSON_READER.build(),
        "Kafka's messages become Python objects, which takes more CPU": KAFKA_READER.build(),
    }
    return [f"{consequence}: {fault}" for consequence, fault in faults.items() if fault]


if __name__ == "__main__":
    for line in build_all():
        print(line, file=sys.stderr)
