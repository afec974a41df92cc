-- The fields of the dead letters, in the plain form, by their place in the dead-letter stream.
CREATE TABLE dead_letter_fields (
    position UBIGINT, bucket UBIGINT, f_position BLOB, f_stage BLOB, f_code BLOB, f_field BLOB, f_message BLOB, f_fingerprint BLOB,
    f_sink BLOB, f_source BLOB, f_topic BLOB, f_partition INTEGER, f_offset BIGINT, f_timestamp BIGINT, f_key BLOB, f_value BLOB,
    f_headers STRUCT("1" BLOB, "2" BLOB)[], f_value_bytes BIGINT, f_value_sha256 BLOB, f_attempts INTEGER, f_first_time BIGINT,
    f_last_time BIGINT, f_config_version BLOB, f_past_dedup BOOLEAN, f_origin BLOB,
    topic BLOB, "partition" INTEGER, "offset" BIGINT, arrival_us BIGINT
)
