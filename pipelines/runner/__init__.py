"""One running pipeline: its checks before the start, its queries, its status."""
