"""The keyed store of dedup: which keys a bucket holds, in memory and on disk. Pure but for its files."""
