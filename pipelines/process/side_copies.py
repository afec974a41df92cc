"""The copies among the records of each side of a join: which records of a plan a dedup before the join drops.

In: the rows of both sides, with the hash of the dedup's key in COPY_KEY_COLUMNS. Each side has stores of its own, in the buckets of that
key, which is not the join's: keys and positions cross to them, and the positions of the copies come back. Kept: the accepted keys.
Guarantee: as `dedup`; a second attempt finds the same copies, because the stores are read as the last `done` lists them.
"""

from collections.abc import Callable, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.process.buckets import BUCKET_THREADS, Buckets, key_owners, shares
from pipelines.process.dedup import COPY_KEY_COLUMNS, KEY_COLUMNS, PAST_COLUMN, Deduplicated
from pipelines.process.program import Program
from pipelines.process.steps.dedup import Dedup
from pipelines.process.steps.join import IS_RIGHT_COLUMN
from pipelines.protocol.naming import DEDUP_STORE, SIDE_DEDUP_STORES, listed_as
from pipelines.protocol.positions import NO_POSITIONS, SEQUENCE_AND_ORDINAL, RawPositions, position_keys

FirstOfKeys = Callable[[str, Dedup, pa.Table], Deduplicated]
"""Deduplicates keys against the store of a place (store and bucket), by a step, and writes those that it accepts."""
_COMPARED = (*SEQUENCE_AND_ORDINAL, "_tf_arrival", PAST_COLUMN, *COPY_KEY_COLUMNS)


def keys_by_place(rows: pa.Table, config: Program, buckets: int) -> dict[str, pa.Table]:
    """Return the keys and positions that dedups compare, by store and bucket (`naming.listed_as`), in the order of the rows.

    `buckets`: the number of the stores' buckets, which a rebucketing has changed since older plans.
    """
    found: dict[str, pa.Table] = {}
    for is_right in config.side_dedups:
        mine = rows.filter(pc.equal(rows.column(IS_RIGHT_COLUMN), is_right))
        if mine.num_rows:
            keys = mine.select([name for name in _COMPARED if name in mine.column_names])
            own = dict(zip(COPY_KEY_COLUMNS, KEY_COLUMNS, strict=True))
            keys = keys.rename_columns([own.get(name, name) for name in keys.column_names])
            places = shares(keys, key_owners(keys, buckets))
            found |= {listed_as(SIDE_DEDUP_STORES[is_right], bucket): share for bucket, share in places}
    return found


def copies_among(keys: Mapping[str, pa.Table], config: Program, buckets: Buckets) -> RawPositions:
    """Return the positions of the copies among all keys of a plan in some places, ascending; write the keys that are accepted."""

    def copies(place: str) -> RawPositions:
        store, _, bucket = place.rpartition("/")
        found, _ = buckets.first_of_keys(dedup_of(config, store), keys[place], int(bucket), store=store)
        return position_keys(found.duplicates)

    with buckets.means.threads(BUCKET_THREADS, "bucket") as workers:
        found = [worker.result() for worker in [workers.submit(copies, place) for place in keys]]
    positions: RawPositions = np.sort(np.concatenate([NO_POSITIONS, *found]))
    return positions


def copies_found_by(first_of_keys: FirstOfKeys, rows: pa.Table, config: Program, buckets: int) -> RawPositions:
    """Return the positions of the copies among the rows of both sides, found place by place, outside of a plan.

    `buckets`: as `keys_by_place` takes it.
    """
    found = [NO_POSITIONS]
    for place, keys in keys_by_place(rows, config, buckets).items():
        found.append(position_keys(first_of_keys(place, dedup_of(config, place.rpartition("/")[0]), keys).duplicates))
    return np.concatenate(found)


def dedup_of(config: Program, store: str) -> Dedup:
    """Return the step whose accepted keys are in a store: the dedup of a side, or that of a pipeline without a join."""
    if store == DEDUP_STORE:
        return config.dedup
    return next(step for is_right, step in config.side_dedups.items() if SIDE_DEDUP_STORES[is_right] == store)


def without_copies(rows: pa.Table, copies: RawPositions) -> pa.Table:
    """Return the rows that are no copies, without the hash of the dedup's key, and without what dedup knows of them."""
    rows = rows.drop_columns([name for name in (*COPY_KEY_COLUMNS, PAST_COLUMN) if name in rows.column_names])
    if not len(copies):
        return rows
    return rows.filter(pa.array(np.isin(position_keys(rows), copies, invert=True)))
