"""The function of this pipeline: what kind of device a click comes from, by its user agent."""

import pyarrow as pa
import pyarrow.compute as pc

MOBILE = "iPhone|Android|Mobile"


def device(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return `device` of each click: `mobile` or `desktop`; a click without a user agent comes from a desktop."""
    is_mobile = pc.fill_null(pc.match_substring_regex(batch["user_agent"], MOBILE), False)
    return pa.record_batch({"device": pc.if_else(is_mobile, "mobile", "desktop")})
