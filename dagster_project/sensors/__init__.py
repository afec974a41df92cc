"""Sensors, and what they decide."""
