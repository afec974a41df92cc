"""Expressions of the pipeline file: checked at load, and evaluated over the columns of a batch. SQL, or GlassFlow's expr-lang."""
