"""The Kafka broker's jars: fetched once with the Ivy that pyspark ships, checked against pinned sha256 sums, kept in the user's cache.

The directory of jars appears in one rename when it is complete and correct, so a crash in between leaves nothing that looks complete. It is
checked again at every start of a broker (0.1 s): a damaged jar is fetched again, and a fetched jar that differs from its pin is refused.
"""

import hashlib
import importlib.util
import os
import shutil
import subprocess
import tempfile
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path

from filelock import FileLock

from resources.local.errors import LocalServerError
from resources.local.java import Java

KAFKA_VERSION = "4.1.0"

_HERE = Path(__file__).parent
_IVY_MODULE = _HERE / "ivy.xml"
_PARTIAL = f"kafka-{KAFKA_VERSION}.partial-"


def cache_directory() -> Path:
    """Return the directory of the jars: `tallyflow/kafka-<version>` under XDG_CACHE_HOME or ~/.cache."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "tallyflow" / f"kafka-{KAFKA_VERSION}"


def pinned_sums() -> dict[str, str]:
    """Return file name -> sha256 (hex) of every jar with which the broker runs."""
    return parse_sums((_HERE / "jars.sha256").read_text())


def parse_sums(text: str) -> dict[str, str]:
    """Parse file name -> sha256 from lines as `sha256sum` writes them: the sum, two blanks, the name."""
    return {name: digest for digest, name in (line.split("  ", 1) for line in text.splitlines() if line)}


def find_faults(directory: Path, sums: Mapping[str, str]) -> list[str]:
    """Return the faults of the jars in `directory`, one line each: missing, other content, or not pinned; empty if there are none."""
    present = {path.name for path in directory.iterdir()} if directory.is_dir() else set()
    faults = [f"{name}: not pinned" for name in sorted(present - sums.keys())]
    for name, expected in sorted(sums.items()):
        if name not in present:
            faults.append(f"{name}: missing")
            continue
        with (directory / name).open("rb") as jar:
            found = hashlib.file_digest(jar, "sha256").hexdigest()
        if found != expected:
            faults.append(f"{name}: sha256 is {found}, pinned is {expected}")
    return faults


def ensure_jars(java: Java, environment: Mapping[str, str], progress: Callable[[str], None], sums: Mapping[str, str] | None = None) -> Path:
    """Return the directory that holds exactly the pinned jars; fetch them if they are missing or damaged (about 40 s).

    `environment` is Ivy's, `sums` the pins: `pinned_sums()` unless given. Of two callers at once, the second waits and finds the jars of
    the first. Raise LocalServerError if they cannot be fetched or differ from the pins; nothing is kept then.
    """
    sums, target = pinned_sums() if sums is None else sums, cache_directory()
    if not find_faults(target, sums):
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(target.with_name(f"{target.name}.lock")):
        if not find_faults(target, sums):
            return target
        for left_over in target.parent.glob(f"{_PARTIAL}*"):
            shutil.rmtree(left_over, ignore_errors=True)
        with tempfile.TemporaryDirectory(prefix=_PARTIAL, dir=target.parent, ignore_cleanup_errors=True) as work:
            fetched = _fetch(java, environment, Path(work), len(sums), progress)
            faults = find_faults(fetched, sums)
            if faults:
                listing = "\n".join(f"  - {fault}" for fault in faults)
                raise LocalServerError(
                    f"checking the fetched jars of Kafka {KAFKA_VERSION} against the pinned sums: {len(faults)} differ, none is used\n"
                    f"{listing}\n"
                    "A mirror or proxy that changes files is the usual cause; fetch through another network"
                )
            shutil.rmtree(target, ignore_errors=True)
            fetched.rename(target)
    return target


def _fetch(java: Java, environment: Mapping[str, str], work: Path, expected: int, progress: Callable[[str], None]) -> Path:
    jars = work / "jars"
    command = [str(java.executable), f"-Divy.default.ivy.user.dir={work / 'ivy'}", "-jar", str(_find_ivy()), "-cache", str(work / "cache")]
    command += ["-ivy", str(_IVY_MODULE), "-confs", "runtime", "-retrieve", f"{jars}/[artifact]-[revision].[ext]"]
    tail: deque[str] = deque(maxlen=15)
    modules = fetched = 0
    progress("asking for the list of Kafka's jars")
    with subprocess.Popen(  # noqa: S603
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=dict(environment)
    ) as ivy:
        try:
            for line in ivy.stdout or ():
                tail.append(line.rstrip())
                modules += line.startswith("\tfound ")
                fetched += "[SUCCESSFUL ]" in line and ".jar" in line
                progress(f"fetching Kafka's jars: {fetched} of {expected}" if fetched else f"looking up Kafka's jars: {modules}")
        except BaseException:
            ivy.kill()
            raise
    if ivy.returncode != 0 or not jars.is_dir():
        raise LocalServerError(
            f"fetching the jars of Kafka {KAFKA_VERSION} with Ivy: exit code {ivy.returncode}; the network is needed once, or put the jars "
            f"listed in jars.sha256 into {cache_directory()} by hand. Its last lines:\n" + "\n".join(f"  {line}" for line in tail)
        )
    return jars


def _find_ivy() -> Path:
    spark = importlib.util.find_spec("pyspark")
    folder = Path(spark.origin).parent / "jars" if spark and spark.origin else None
    found = sorted(folder.glob("ivy-*.jar")) if folder else []
    if not found:
        raise LocalServerError(f"looking for Ivy: no ivy-*.jar in {folder or 'pyspark, which is not installed'}; install pyspark again")
    return found[-1]
