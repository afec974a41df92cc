"""Start, find and stop the runners of a pipeline, from outside."""
