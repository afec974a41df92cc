"""What a stop says of the runners that it has not ended."""

import json
import os
from pathlib import Path

from pipelines.control.control import STATUS_FILE, find_runners, last_words
from pipelines.control.processes import ProcessIdentity, start_mark

LOG = """2026-11-29T18:57:00.000Z INFO stopping: batches in work are finished
2026-11-29T18:57:15.000Z WARNING stopping: it still waits for topic orders
"""


def test_a_process_is_named_with_the_last_message_of_its_log(tmp_path: Path) -> None:
    own, log = ProcessIdentity(os.getpid(), str(start_mark(os.getpid()))), tmp_path / "runner.log"
    log.write_text(LOG)
    (tmp_path / "ingest-1").mkdir()
    known = {"pid": own.pid, "mark": own.start, "port": 1, "key": "", "legs": ["ingest"], "log": str(log)}
    (tmp_path / "ingest-1" / STATUS_FILE).write_text(json.dumps(known))
    assert len(find_runners(tmp_path)) == 1
    assert last_words(tmp_path, [own]) == f"process {own.pid} (stopping: it still waits for topic orders)"


def test_a_process_without_a_log_is_named_alone(tmp_path: Path) -> None:
    assert last_words(tmp_path, [ProcessIdentity(7, "mark"), ProcessIdentity(8, "mark")]) == "process 7, process 8"
