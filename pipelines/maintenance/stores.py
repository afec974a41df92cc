"""The key stores of a pipeline as maintenance opens them: that of its dedup, or those of its join and of the dedups before it."""

from pipelines.engine.connections import Connections
from pipelines.key_store.store import KeyedStore
from pipelines.process.buckets import dedup_store, live_runs
from pipelines.process.join.sides import before
from pipelines.process.joining import join_stores
from pipelines.process.program import Program
from pipelines.process.side_copies import dedup_of
from pipelines.protocol.bodies import ProcessDone
from pipelines.protocol.naming import LEFT_STORE, RIGHT_STORE, listed_as
from pipelines.protocol.run_lists import Lists


def opened_store(connections: Connections, config: Program, store: str, bucket: int, lists: Lists) -> KeyedStore:
    """Return a store of a bucket, open on its listing; that of left records knows the right ones that have released some.

    Raise StateDamagedError for a missing or foreign segment.
    """
    if config.join is None or store not in (RIGHT_STORE, LEFT_STORE):
        found = dedup_store(connections, bucket, store)
        found.open(live_runs(lists, listed_as(store, bucket)))
        return found
    stores = join_stores(connections, config.join, bucket)
    stores.open(*(live_runs(lists, listed_as(one, bucket)) for one in (RIGHT_STORE, LEFT_STORE)))
    return stores.rights if store == RIGHT_STORE else stores.lefts


def beside(store: str) -> tuple[str, ...]:
    """Return the stores that `opened_store` reads for a store."""
    return (RIGHT_STORE, LEFT_STORE) if store in (RIGHT_STORE, LEFT_STORE) else (store,)


def expired_us(config: Program, store: str, done: ProcessDone) -> int:
    """Return the time up to which, inclusive, the entries of a store have expired as of a `done`."""
    if config.join is None or store not in (RIGHT_STORE, LEFT_STORE):
        return dedup_of(config, store).expired_us(done)
    join = config.join
    return before(join.clock_us(done), join.kept_us if store == RIGHT_STORE else join.windows.left_us)
