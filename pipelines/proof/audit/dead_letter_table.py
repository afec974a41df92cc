"""The audit of a table of dead letters: each place of the dead-letter stream is in it once. Reads only.

It counts places and reads no contents. The table is read before the stream, so each of its rows has its frame by then, unless a purge has
removed it.
"""

import numpy as np

from pipelines.config import PipelineConfig
from pipelines.connectors.nats.client import JetStream
from pipelines.proof.audit.report import AuditReport
from pipelines.proof.readers.streams import read_frames
from pipelines.proof.readers.table import position_batches
from pipelines.protocol.naming import Names
from pipelines.protocol.positions import NO_POSITIONS, RawPositions, first_position, packed, position_text
from pipelines.protocol.purge import read_purged

DEAD_LETTERS_TO_TABLE = "dead letters -> table"


def compare_dead_letter_table(config: PipelineConfig, log: JetStream, confirmed: int, report: AuditReport, examples: int) -> None:
    """Note in `report` how the table of the config's sink differs from the dead-letter stream.

    `confirmed`: the sequence up to which its leg had confirmed rows before anything was read.
    """
    sink, names, name = config.sink, Names(config.pipeline_id), config.topology.file_id(config.sink_leg)
    table = np.sort(np.concatenate([NO_POSITIONS, *position_batches(sink)]))
    frames = [(message.sequence, message.rows) for message in read_frames(log, names, "dlq")]
    there = np.concatenate([NO_POSITIONS, *(packed(sequence, np.arange(rows)) for sequence, rows in frames)])
    # A purge may have been at work meanwhile; its end may have removed what was read, or not yet what it may.
    floor = first_position(max(1, read_purged(log, names, "dlq").below))
    older = int(((table < floor) & (table >= first_position(1))).sum())
    found, wanted = table[(table >= floor) | (table < first_position(1))], there[there >= floor]
    must_be = wanted[wanted < first_position(confirmed + 1)]
    distinct, times = np.unique(found, return_counts=True)
    report.counts[f"table ({name})"] = len(table)
    report.cannot_prove(f"dead letters that their table has not confirmed ({name})", len(wanted) - len(must_be))
    report.leave_out(f"rows of dead letters that are purged from their stream ({name})", older)
    faults: dict[str, RawPositions] = {
        "missing": np.setdiff1d(must_be, distinct),
        "extra": np.setdiff1d(distinct, wanted),
        "doubled": distinct[times > 1],
    }
    for kind, codes in faults.items():
        named = [{"found": f"place {position_text(int(code))} of the dead-letter stream"} for code in codes[:examples]]
        report.find(f"{DEAD_LETTERS_TO_TABLE} ({name})", kind, len(codes), named)  # type: ignore[arg-type]
    report.ranges[f"dead-letter sequences in the table ({name})"] = [frames[0][0] if frames else 0, confirmed]
