"""Verification of ClickHouse: the records of a range computed again in DuckDB, by other means than the stages, and compared with the table.

`run.verify` is the whole of it; `result.Verification` is what it gives back.

- `span`: hours of arrival as raw sequences, what can be proved, and how far back the copies of the range may have their originals.
- `frames`, `reference`, `values`: raw frames to the rows that the table must hold, with the statements of sql/reference.
- `table`, `rows`: the table's side, with and without position columns; sums per bucket of frames and column first, rows where sums differ.
- `slices`: a long range in Spark tasks, each with a `run` of its own; the results as one.

Induction: the copies within one window before the range are not judged again. Which of these records was accepted, the table's own rows
say, and a verification of the hours before proves those. Where the window reaches back to the pipeline's first frame, nothing is taken
from the table.
"""
