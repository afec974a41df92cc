"""Work on a pipeline's dedup store from outside its legs: looking, compaction, rebuilding. The store itself is state/."""
