"""What Python workers leave with the daemon that has forked them, told once none of them is left: real processes, and no runner."""

import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from pipelines.engine.line import Process
from pipelines.runner import wills
from pipelines.runner.wills import Will, Wills

ONE, OTHER = (Will(Process("here", pid, ""), f"run {pid}", "runs.1") for pid in (1, 2))
FORKS = """
import os, signal, time
from pipelines.engine.line import Process
from pipelines.runner import wills

# As Spark's daemon: its children leave no zombies.
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
wills.begin()
ready, told = os.pipe()
for kind in ("stays", "ends"):
    if os.fork() == 0:
        wills.leave(Process.own(), kind, "subject")
        if kind == "ends":
            wills.withdraw(Process.own())
        os.write(told, b".")
        time.sleep(60 if kind == "stays" else 0)
        os._exit(0)
for _ in range(2):
    os.read(ready, 1)
children = wills._here.left()
print([will.run_text for will in children], [will.process.is_dead() for will in children])
for child in children:
    os.kill(child.process.pid, signal.SIGKILL)
left = wills.left_behind()
print([will.run_text for will in left], [will.process.is_dead() for will in left])
"""


def test_the_last_will_of_a_process_counts_and_may_be_withdrawn() -> None:
    shared = Wills()
    assert shared.left() == []
    for will in (ONE, OTHER, replace(ONE, subject="runs.2")):
        shared.leave(will)
    assert shared.left() == [replace(ONE, subject="runs.2"), OTHER]
    shared.leave(Will(OTHER.process))
    assert shared.left() == [replace(ONE, subject="runs.2")]
    shared._file.write(b'{"process": {"host": "he\n')
    shared.leave(OTHER)
    assert shared.left()[1:] == [OTHER], "behind one that was cut"


def test_where_no_file_can_be_made_nobody_leaves_a_will(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nothing"))
    wills.begin()
    wills.leave(ONE.process, "run", "subject")
    assert wills._here is None


def test_wills_of_forked_processes_are_read_once_all_have_ended() -> None:
    found = subprocess.run([sys.executable, "-c", FORKS], capture_output=True, text=True, timeout=120, check=True)
    assert found.stdout.splitlines() == ["['stays'] [False]", "['stays'] [True]"], found.stderr
