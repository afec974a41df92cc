"""What the resources of the outer systems share: their values are the environment with which `${NAME}` in a pipeline file is resolved."""

import os
from collections.abc import Mapping
from typing import ClassVar

import dagster as dg


class ConnectionResource(dg.ConfigurableResource[None]):
    """A system that pipeline files connect to. An empty field stands for the environment variable of its name."""

    variables: ClassVar[Mapping[str, str]]
    """Environment variable by field."""

    def environment(self) -> dict[str, str]:
        """The variables that this resource gives a value itself. It holds secrets: never log it."""
        values = {name: str(getattr(self, field)) for field, name in self.variables.items()}
        return {name: value for name, value in values.items() if value}

    def value(self, field: str) -> str:
        """The field's own value, else that of the environment variable of its name, else empty."""
        return str(getattr(self, field)) or os.environ.get(self.variables[field], "")
