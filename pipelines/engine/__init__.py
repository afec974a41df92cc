"""Spark's session and batch tasks; the legs' base class, their inputs, and who works on them."""
