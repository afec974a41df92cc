"""The `tables` of the pipeline file, for look-ups: a kind is a module of this package with a `TABLE`."""

import pkgutil
from functools import reduce
from importlib import import_module
from operator import or_
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

if TYPE_CHECKING:
    from pipelines.config.table_model import TableModel as LookupTable
else:
    _models = [import_module(f"{__name__}.{module.name}").TABLE for module in pkgutil.iter_modules(__path__)]
    LookupTable = Annotated[reduce(or_, _models), Field(discriminator="type")]

__all__ = ["LookupTable"]
