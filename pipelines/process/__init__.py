"""Raw to out: the steps that make rows of records, as a deterministic function of the raw log."""
