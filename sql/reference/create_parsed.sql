-- One row per raw record that was read, or, of a record of several rows, one for each (`emit`: its number, `is_first`: of those that are left): where it stands, which stage rejects it (NULL: none; `dropped.<step>`: the step drops it), its key, its time, a hash of its bytes, whether the sink of the comparison takes it, with which outcome a step behind dedup drops it (NULL: none) if it is no copy, and the values it calls for.
CREATE TABLE parsed (
    position UBIGINT, emit UINTEGER, is_first BOOLEAN, source VARCHAR, topic VARCHAR, "partition" INTEGER, "offset" BIGINT, arrival_us BIGINT, is_past BOOLEAN, is_wide BOOLEAN, bytes UBIGINT,
    stage VARCHAR, key UHUGEINT, at_us BIGINT, is_here BOOLEAN, then_dropped VARCHAR$columns
)
