"""Look-up tables: what is read of one (`spec`), a snapshot of it that no later change reaches (`snapshot`), and where snapshots are kept.

In: the rows of a table, as a connector has fetched them. Out: for records, the row of each. Kept: a file per snapshot, by its digest.
"""
