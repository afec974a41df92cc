"""The file with which a pipeline was last started on this host: its run file keeps the text."""

from pathlib import Path

from pipelines.engine.run_spec import RUN_FILE, RunSpec, read_run


def last_run(directory: Path) -> RunSpec | None:
    """Return the newest start of a pipeline's directory, running or ended; None if there is none. Raise HaltError for a damaged one."""
    found = sorted(directory.glob(f"*/{RUN_FILE}"), key=lambda path: path.stat().st_mtime_ns)
    return read_run(found[-1].read_text(encoding="utf-8")) if found else None
