"""JSON to typed columns."""
