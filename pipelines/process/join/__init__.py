"""join: left records meet the newest right record of their key, within two windows of arrival.

In: the rows of both sides of a range in one bucket, in position order (`sides`), the arrivals of all frames of the range, and the bucket's
stores as the last `done` lists them (`stores`). Out: a row per left record that has met a right one or whose window has ended (`rows`),
the entries that the stores take, and counts.

Meaning, record by record: before each raw frame of arrival A, every waiting left record with arrival + left window <= A is unmatched. A
left record at A is joined with the newest right record of its key if A < its arrival + right window, and waits otherwise. A right record
is joined with all waiting left records of its key, in their order, and then is the newest one of its key. So each left record is joined
once, unmatched once, or waits.

Guarantee: the answer is a function of the log, whatever the batches, and the same when a range is joined again over the same listed
segments. A left record is the identity of its row; the cause is the record that made the row appear (`outcomes`).

By event time (`timed_outcomes`; no pipeline file asks for it yet) the records' own times replace the arrivals: `progress` finds the
watermark behind each frame, `matches` which right record a left one meets and when that is final, `timed_stores` what is kept for it.
"""
