-- Rows whose key another row had less than the window before, by arrival, among the rows since an instant. Only keys with several rows are
-- ordered: there are few. $key stands for checked identifiers; columns of a key may have any name that does not begin with _tf_.
SELECT _tf_partition, _tf_offset, _tf_sequence, _tf_partition_before, _tf_offset_before, _tf_sequence_before
FROM (
    SELECT
        _tf_partition,
        _tf_offset,
        _tf_sequence,
        _tf_arrival,
        row_number() OVER _tf_w AS _tf_place,
        lagInFrame(_tf_partition) OVER _tf_w AS _tf_partition_before,
        lagInFrame(_tf_offset) OVER _tf_w AS _tf_offset_before,
        lagInFrame(_tf_sequence) OVER _tf_w AS _tf_sequence_before,
        lagInFrame(_tf_arrival) OVER _tf_w AS _tf_arrival_before
    FROM {database:Identifier}.{table:Identifier}
    WHERE _tf_topic = {topic:String} AND _tf_arrival >= {since:DateTime64(6, 'UTC')} AND sipHash64($key) IN (
        SELECT sipHash64($key)
        FROM {database:Identifier}.{table:Identifier}
        WHERE _tf_topic = {topic:String} AND _tf_arrival >= {since:DateTime64(6, 'UTC')}
        GROUP BY 1
        HAVING count() > 1
    )
    WINDOW _tf_w AS (PARTITION BY $key ORDER BY _tf_arrival, _tf_sequence, _tf_ordinal ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)
)
WHERE _tf_place > 1
    AND (_tf_partition, _tf_offset) != (_tf_partition_before, _tf_offset_before)
    AND dateDiff('microsecond', _tf_arrival_before, _tf_arrival) < {window_us:Int64}
ORDER BY _tf_partition, _tf_offset
LIMIT {limit:UInt32}
SETTINGS max_bytes_before_external_group_by = {spill_bytes:UInt64}
