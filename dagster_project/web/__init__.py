"""Dagster's web server, guarded."""
