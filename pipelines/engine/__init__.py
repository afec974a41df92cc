"""Spark: the session, the legs' Data Sources, work in the driver or in tasks."""
