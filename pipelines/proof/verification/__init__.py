"""Verification of ClickHouse: the records of a range computed again in DuckDB, by other means than the stages, and compared with the table.

`run.verify` is the whole of it; `result.Verification` is its report.

- `span`: hours of arrival as raw sequences, what can be proved, and how far back the copies of the range may have their originals.
- `loading`, `reference`, `values`: raw frames to the rows that the table must hold, with the statements of sql/reference.
- `table`, `rows`: the table's side, with and without position columns; sums per bucket of frames and column first, rows where sums differ.
- `findings`: dead letters, Kafka's bytes, and the counts.
- `copies`: for the audit, which records without a row are copies.

Induction: the copies within one window before the range are not found again. The table's own rows show which of these records were
accepted, and a verification of the hours before proves them. Where the window reaches back to the pipeline's first frame, nothing is taken
from the table.
"""
