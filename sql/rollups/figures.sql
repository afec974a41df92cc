-- The figures of one target by window and group. Names with a dollar sign stand for checked text.
SELECT _length.1 AS window$keys$figures FROM $database.$target ARRAY JOIN [$lengths] AS _length
WHERE bucket < _until AND bucket >= _until - toIntervalSecond(_length.2) GROUP BY window$keys
