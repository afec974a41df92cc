"""Finds local servers by the marks in their environment: a server is found again although its pid file is missing."""

import os
from pathlib import Path

import psutil

from pipelines.control.processes import ProcessIdentity, identify

HOME_MARK = "TALLYFLOW_SERVER_OF"
NAME_MARK = "TALLYFLOW_SERVER_NAME"


def find_marked(home: Path, name: str) -> list[ProcessIdentity]:
    """Return the live processes of this user that carry the marks of server `name` of `home` in their environment."""
    found = []
    for process in psutil.process_iter():
        try:
            environment = process.environ() if process.uids().real == os.getuid() else {}
        except psutil.Error:
            continue
        identity = identify(process.pid) if (environment.get(HOME_MARK), environment.get(NAME_MARK)) == (str(home), name) else None
        if identity is not None:
            found.append(identity)
    return found
