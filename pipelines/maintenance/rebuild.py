"""Rebuild of lost or damaged key stores from the raw stream: the same records through the same stages give the same keys.

Nothing is published. Each range is read under its original configuration, as the ledger's plans name it, without the records that the
plans have made dead letters. The numbers of rows and duplicates must equal the ledger's counts; only then are the new segments listed.
"""

from dataclasses import replace

from pipelines.maintenance.inspect import KeyState
from pipelines.maintenance.rebuild_dedup import DedupRebuilding
from pipelines.maintenance.rebuild_join import JoinRebuilding
from pipelines.maintenance.rebuilding import FRAMES_PER_PORTION, Rebuilt
from pipelines.progress import Progress, no_progress
from pipelines.protocol.run_lists import RunLists


def rebuild(state: KeyState, progress: Progress = no_progress, frames_per_portion: int = FRAMES_PER_PORTION) -> Rebuilt:
    """Write the stores anew, up to the last `done`; an open plan is left for the next start. Safe to kill, and to repeat.

    `progress` counts the frames read. Raise FencedError while the process leg is up, DataLossError if the streams do not reach back to the
    oldest live key, InvariantError if the counts differ from the ledger's; then nothing was listed.
    """
    with state.held() as (chain, chain_state):
        done = state.last(chain_state)
        of = DedupRebuilding if state.stage_config(chain_state).join is None else JoinRebuilding
        rebuilding = of(state, done, chain_state.sequence)
        rebuilding.replay_all(progress, frames_per_portion)
        result = rebuilding.result()
        chain.restate(replace(done, runs=RunLists(state.connections.log, state.names).write(None, rebuilding.runs)))
        return result
