"""Loading: from the text of a pipeline file to a PipelineConfig, or to every fault in it.

A command that connects to nothing loads `offline`: what only connections read may be missing from the environment.

The order matters: YAML or JSON first, then `${NAME}` and `{file: PATH}` inside the parsed tree, then the model. A value from the
environment only ever becomes the text of one scalar; it cannot add fields.
"""

import os
from collections.abc import Iterable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from pipelines.config.base import External
from pipelines.config.faults import faults_of
from pipelines.config.interpolate import interpolate
from pipelines.config.partial import Partial
from pipelines.config.pipeline import PipelineConfig
from pipelines.config.text import MAX_CHARACTERS, path_text, read_tree
from pipelines.config.unreached import without_connections
from pipelines.errors import ConfigurationError, Fault

MAX_FAULTS = 100
"""In a file that is not a pipeline file, every line may be a fault."""


def load(path: Path, environment: Mapping[str, str] = os.environ, *, offline: bool = False, text: str | None = None) -> PipelineConfig:
    """Load the pipeline that the file at `path` (YAML or JSON, UTF-8) describes; `offline` as in `parse`.

    `text`: what the file held earlier, in place of what it holds; other files are looked for beside it all the same.

    Raises ConfigurationError with every fault of the file; nothing was started, and the caller shows the faults.
    """
    config = parse(read_text(path) if text is None else text, name=str(path), environment=environment, offline=offline)
    for transform in config.transforms:
        transform.config.locate(path.parent.resolve())
    for table in config.tables.values():
        table.locate(path.parent.resolve())
    return config


def read_text(path: Path) -> str:
    """Return the text of a file, or a beginning that is too long to be sound. Raise ConfigurationError if it cannot be read."""
    try:
        with path.open(encoding="utf-8") as file:
            return file.read(MAX_CHARACTERS + 1)
    except OSError as error:
        raise ConfigurationError(str(path), [Fault("", f"cannot be read: {error.strerror}")]) from error
    except UnicodeDecodeError as error:
        raise ConfigurationError(str(path), [Fault("", f"is not UTF-8 text (byte {error.start})")]) from None


def parse(text: str, *, name: str, environment: Mapping[str, str], offline: bool = False) -> PipelineConfig:
    """Parse the pipeline that `text` describes; messages call it `name`. Reads the files that `{file: PATH}` names.

    NATS_URL of `environment` is the NATS server if the file names none. With `offline`, variables and files that only connections need may
    be missing: the config then names servers that do not exist. Raises ConfigurationError with every fault.
    """
    tree, faults = read_tree(text, name)
    tree, more = interpolate(tree, environment)
    config, found = _validated(_with_nats_url(tree, environment), [*faults, *more])
    if offline and config is None:
        # The whole file was validated first: a section that is replaced may have other faults.
        unreached, excused = without_connections(tree)
        more = [fault for fault in more if fault.path not in excused]
        if not (faults or more or found):
            config, found = _validated(unreached, more)
    faults += more + found
    if config is None or faults:
        raise ConfigurationError(name, _first(list(dict.fromkeys(faults))))
    return config


def _validated(tree: Any, known: Iterable[Fault]) -> tuple[PipelineConfig | None, list[Fault]]:
    """Return the config of a tree, or its faults but those at paths of `known`. No cause is kept: pydantic's may carry values."""
    try:
        return PipelineConfig.model_validate(tree), []
    except ValidationError as error:
        return None, _model_faults(error, tree, {fault.path for fault in known})


def _model_faults(error: ValidationError, tree: Any, known: set[str]) -> list[Fault]:
    """List the faults that pydantic and the rules found, except at paths with a known fault."""
    faults = list(islice(faults_of(error, tree), MAX_FAULTS + 1))
    if isinstance(tree, dict):
        between = Partial(PipelineConfig, tree).all_faults()
        faults += [Fault(path_text(location), message) for location, message in islice(between, MAX_FAULTS + 1)]
    return [fault for fault in faults if fault.path not in known]


def _first(faults: list[Fault]) -> list[Fault]:
    return faults if len(faults) <= MAX_FAULTS else [*faults[:MAX_FAULTS], Fault("", "and more: fix these first")]


def _with_nats_url(tree: Any, environment: Mapping[str, str]) -> Any:
    url = environment.get("NATS_URL")
    nats = tree.get("nats") if isinstance(tree, dict) else None
    if not url or not isinstance(tree, dict) or not isinstance(nats, dict | None) or (nats and nats.get("url")):
        return tree
    return tree | {"nats": {**(nats or {}), "url": External(url)}}
