"""The common part of the resources of outer systems: their values are the environment that resolves `${NAME}` in a pipeline file."""

import os
from collections.abc import Mapping
from typing import ClassVar

import dagster as dg


class ConnectionResource(dg.ConfigurableResource[None]):
    """A system that pipeline files connect to. An empty field stands for the environment variable of its name."""

    variables: ClassVar[Mapping[str, str]]
    """Environment variable by field."""

    def environment(self) -> dict[str, str]:
        """Return the variables to which this resource gives a value itself. They include secrets: never log them."""
        values = {name: str(getattr(self, field)) for field, name in self.variables.items()}
        return {name: value for name, value in values.items() if value}

    def value(self, field: str) -> str:
        """Return the field's own value, else that of the environment variable of its name, else an empty text."""
        return str(getattr(self, field)) or os.environ.get(self.variables[field], "")
