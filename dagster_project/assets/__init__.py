"""The assets of each pipeline."""
