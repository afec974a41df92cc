"""Out to the sink: frames to chunks to inserts, one token per chunk."""
