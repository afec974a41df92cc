"""The key store of dedup: which keys a bucket holds, in memory and on disk. Pure except for its files."""
