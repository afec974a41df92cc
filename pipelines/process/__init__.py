"""From raw to out: the steps that turn records into rows, as a deterministic function of the raw log."""
