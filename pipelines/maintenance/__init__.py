"""Work on the stored state of a pipeline, from outside of it."""
