"""Finds the Java runtime that Kafka (and Spark) need: JAVA_HOME first, then PATH."""

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from resources.local.errors import LocalServerError

# Kafka 4 brokers and Spark 4 both need Java 17: https://kafka.apache.org/41/operations/java-version/
MINIMUM_JAVA = 17
INSTALL_JAVA = (
    f"install a Java {MINIMUM_JAVA} or later runtime (for example the package openjdk-{MINIMUM_JAVA}-jre-headless) or set JAVA_HOME to one"
)

_VERSION = re.compile(r'version "(\d+)(?:\.(\d+))?[^"]*"')


@dataclass(frozen=True)
class Java:
    """A Java launcher and its feature release (17, 21, ...)."""

    executable: Path
    version: int


def parse_java_version(text: str) -> int | None:
    """Return the feature release in the output of `java -version`: 17 for "17.0.15", 8 for "1.8.0_412"; None if there is none."""
    match = _VERSION.search(text)
    if match is None:
        return None
    major, minor = int(match[1]), match[2]
    return int(minor) if major == 1 and minor is not None else major


def find_java() -> Java:
    """Find the Java of JAVA_HOME, else of PATH.

    Raise LocalServerError, in one line that names what to install, if there is none, it does not run or it is too old. A useless JAVA_HOME
    is an error and is not skipped: Spark would use it, too.
    """
    java_home = os.environ.get("JAVA_HOME")
    found = shutil.which("java", path=str(Path(java_home) / "bin")) if java_home else shutil.which("java")
    origin = f"JAVA_HOME ({java_home})" if java_home else "PATH"
    if found is None:
        raise LocalServerError(f"looking for Java: no java in {origin}; {INSTALL_JAVA}")
    version = _ask_version(found)
    if version is None:
        raise LocalServerError(f"looking for Java: {found} (from {origin}) does not tell its version; {INSTALL_JAVA}")
    if version < MINIMUM_JAVA:
        raise LocalServerError(
            f"looking for Java: {found} (from {origin}) is Java {version}, Kafka and Spark need {MINIMUM_JAVA}; {INSTALL_JAVA}"
        )
    return Java(Path(found), version)


def _ask_version(executable: str) -> int | None:
    try:
        asked = subprocess.run([executable, "-version"], capture_output=True, text=True, timeout=30, check=False)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):
        return None
    return parse_java_version(asked.stderr + asked.stdout)
