"""What a stage remembers between batches: which keys it has seen, where, and when, in files that only grow by whole runs.

keys.py: key columns -> 128-bit hashes, the same in every release and on every machine. place.py: a directory of any filesystem. runs.py:
one immutable file of entries sorted by hash. index.py: where in a run a hash can be. cover.py: one filter over many runs, in memory.
store.py: the live runs of one bucket: look-up, append, merge. Which runs are live is decided by the ledger's `done` alone; a run that no
`done` lists does not exist.
"""
