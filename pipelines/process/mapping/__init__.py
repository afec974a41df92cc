"""Typed columns to the table's columns and types."""
