"""The pipeline as it was last started on this host: the run file keeps the file's text, the ledger the code of its functions."""

import os
from contextlib import closing
from pathlib import Path

from pipelines.config import PipelineConfig, codes_of, load, pin_codes
from pipelines.connectors.nats.client import JetStream
from pipelines.engine.run_spec import RUN_FILE, RunSpec, read_run
from pipelines.errors import HaltError
from pipelines.process.stage_config import load_code
from pipelines.protocol.naming import Names


def last_run(directory: Path) -> RunSpec | None:
    """Return the newest start of a pipeline's directory, running or ended; None if there is none. Raise HaltError for a damaged one."""
    found = sorted(directory.glob(f"*/{RUN_FILE}"), key=lambda path: path.stat().st_mtime_ns)
    return read_run(found[-1].read_text(encoding="utf-8")) if found else None


def as_it_ran(file: Path, config: PipelineConfig, directory: Path) -> tuple[PipelineConfig, str]:
    """Return the pipeline as its last start on this host had it, and the text of the file then.

    `config`: the file as it is now; where the code of its functions was edited since, that of the start is read from the ledger. Raise
    HaltError if it was never started here, RetryableError while NATS is away.
    """
    run = last_run(directory)
    if run is None:
        raise HaltError(
            f"reading the file of the last start of {config.pipeline_id}: no start on this host is known; go to the host where it runs, or "
            "start the file with `tallyflow run`"
        )
    before = load(file, {**os.environ, **run.variables}, text=run.config_text)
    pin_codes(before, run.codes)
    if edited := {*run.codes.values()} - {*codes_of(config).values()}:
        with closing(JetStream.of(before).connect()) as log:
            for code in edited:
                load_code(log, Names(before.pipeline_id), code)
    return before, run.config_text
