-- What a table of dead letters must hold of a frame of the dead-letter stream: every field in the plain form, by its place in that stream.
INSERT INTO dead_letter_fields
SELECT ($sequence::UBIGINT << $ordinal_bits) + place AS position,
       position >> $bucket_bits AS bucket,
       encode(_tf_sequence || '.' || _tf_ordinal) AS "f_position",
       encode(stage) AS f_stage,
       encode(code) AS f_code,
       encode(field) AS f_field,
       encode(coalesce(message, '')) AS f_message,
       encode(left(sha256(concat_ws(
           chr(31), coalesce(stage, ''), coalesce(code, ''), coalesce(field, ''),
           regexp_replace(
               regexp_replace(coalesce(message, ''), '''[^'']*''|"[^"]*"', '''''', 'g'), '\p{Nd}+(?:[.,]\p{Nd}+)*', '0', 'g'
           )
       )), 12)) AS f_fingerprint,
       encode(sink) AS f_sink,
       encode(source) AS f_source,
       encode(_tf_topic::VARCHAR) AS f_topic,
       _tf_partition AS f_partition,
       _tf_offset AS f_offset,
       least(greatest(epoch_us(timestamp), -2208988800000000), 10413791999999999) AS f_timestamp,
       key AS f_key,
       value AS f_value,
       list_transform(coalesce(headers, []), lambda pair: {'1': pair.key, '2': pair.value}) AS f_headers,
       oversize.bytes AS f_value_bytes,
       encode(lower(hex(oversize.sha256))) AS f_value_sha256,
       attempts AS f_attempts,
       epoch_us(first_time) AS f_first_time,
       epoch_us(_tf_arrival) AS f_last_time,
       encode(config_version) AS f_config_version,
       past_dedup AS f_past_dedup,
       encode(origin) AS f_origin,
       encode(_tf_topic::VARCHAR) AS topic,
       _tf_partition AS "partition",
       _tf_offset AS "offset",
       epoch_us(_tf_arrival) AS arrival_us
FROM frame
