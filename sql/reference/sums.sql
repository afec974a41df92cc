-- Per bucket of raw frames: how many rows, and per column the sum of a hash of the row's place and value.
INSERT INTO sums SELECT '$side', bucket, count(*)$sums FROM $rows GROUP BY bucket
