"""Sources to raw: each offset in exactly one frame."""
