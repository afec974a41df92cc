"""What the models of all transforms have in common. A model of its own is a module of `config/transforms` with a `TRANSFORM`."""

from collections.abc import Iterable, Sequence
from typing import ClassVar

from pipelines.config.base import Location, Model


class TransformConfig(Model):
    """The `config` of a transform."""

    def fields_read(self) -> Iterable[tuple[Location, Sequence[str]]]:
        """Yield where the config names fields of the source, and which. Also called over a `Partial`, so it only reads attributes."""
        yield from ()


class TransformModel(Model):
    """One entry of `transforms`, with a `type`, a `source_id` and a `config`."""

    is_run: ClassVar[bool] = True
    """False for one that is read, as GlassFlow's files have it, and that no step of this release runs."""
