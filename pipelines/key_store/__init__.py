"""The keyed stores of dedup and of the join: what a bucket holds, in memory and on disk. Pure except for their files."""
