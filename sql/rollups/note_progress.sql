-- Notes how far a target is filled. Names with a dollar sign stand for checked identifiers.
INSERT INTO $database.$progress (stream_id, target, attempt, cut, filled_to, planned_to)
SELECT {stream_id:String}, {target:String}, {attempt:UInt32}, {cut:UInt64}, {filled_to:UInt64}, {planned_to:UInt64}
