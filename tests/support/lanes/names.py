"""The names of the modelled pipeline."""

from pipelines.protocol.naming import Names

NAMES = Names("model")
SOURCE = "orders"
