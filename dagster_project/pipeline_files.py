"""The directory of pipeline files that Dagster shows: TALLYFLOW_PIPELINES, default `examples/` of the checkout.

A faulty file never takes the code location down: it is listed with its faults, and the sound ones work.
"""

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pipelines.config import PipelineConfig, load
from pipelines.errors import ConfigurationError, Fault, TallyflowError
from pipelines.home import default_home
from pipelines.protocol.naming import Names
from pipelines.runner.preflight import check_supported, check_types

DIRECTORY_VARIABLE = "TALLYFLOW_PIPELINES"
_LOG = logging.getLogger(__name__)
_SUFFIXES = {".yaml", ".yml", ".json"}
_DEFAULT = Path(__file__).resolve().parents[1] / "examples"


@dataclass(frozen=True)
class Pipeline:
    """One sound file. `key` is the pipeline id as Dagster takes it in asset keys, groups and op names: `-` becomes `_`."""

    path: Path
    config: PipelineConfig
    key_prefix: tuple[str, ...] = ()

    @property
    def names(self) -> Names:
        return Names(self.config.pipeline_id)

    @property
    def key(self) -> str:
        return self.config.pipeline_id.replace("-", "_")

    @property
    def label(self) -> str:
        """The key with its prefix, as in names of jobs and ops."""
        return "_".join((*self.key_prefix, self.key))

    def directory(self) -> Path:
        """The pipeline's directory on this host, below TALLYFLOW_HOME."""
        return self.names.directory(default_home())


@dataclass(frozen=True)
class FaultyFile:
    """A file that cannot be used; `message` lists every fault with its path, and holds no value of the file."""

    path: Path
    message: str


@dataclass(frozen=True)
class PipelineFiles:
    """What a directory holds, each part sorted by path."""

    directory: Path
    pipelines: tuple[Pipeline, ...]
    faulty: tuple[FaultyFile, ...]
    key_prefix: tuple[str, ...] = ()
    """In front of asset keys, and of the names of jobs, schedules and sensors: what tells two directories in one project apart."""
    skip: frozenset[str] = frozenset()
    """Names of files that are something else."""
    is_scheduled: bool | None = None
    """Whether schedules and sensors run as soon as they are there; None: as the environment says."""

    def name(self, plain: str) -> str:
        """Of a job, a schedule or a sensor that is there once for all pipelines of the directory."""
        return "_".join((*self.key_prefix, plain))

    def asset_key(self, *path: str) -> list[str]:
        return [*self.key_prefix, *path]

    def get(self, key: str) -> Pipeline:
        """The pipeline of that `key`. Raises KeyError."""
        return {pipeline.key: pipeline for pipeline in self.pipelines}[key]


def pipelines_directory(environment: Mapping[str, str] = os.environ) -> Path:
    return Path(environment.get(DIRECTORY_VARIABLE) or _DEFAULT).resolve()


def read_pipeline_files(
    directory: Path,
    environment: Mapping[str, str] = os.environ,
    skip: frozenset[str] = frozenset(),
    key_prefix: tuple[str, ...] = (),
) -> PipelineFiles:
    """Reads every YAML and JSON file below `directory` that is not hidden; of those with one key the first by path is used.

    `skip`: names of files that are something else. What lies below TALLYFLOW_HOME is state and no pipeline file.

    Connects to nothing. A directory that is not there is a faulty file of that name.
    """
    if not directory.is_dir():
        return PipelineFiles(
            directory, (), (FaultyFile(directory, f"{directory} is not a directory; set {DIRECTORY_VARIABLE}"),), key_prefix, skip
        )
    found: dict[str, Pipeline] = {}
    faulty = []
    home = default_home(environment)
    for path in (one for one in _files(directory) if one.name not in skip and not one.is_relative_to(home)):
        try:
            pipeline = Pipeline(path, load(path, environment), key_prefix)
            check_supported(pipeline.config)
            check_types(pipeline.config)
            if pipeline.key in found:
                raise ConfigurationError(str(path), [_same_key(pipeline, found[pipeline.key])])
        except TallyflowError as error:
            faulty.append(FaultyFile(path, str(error)))
        except Exception as error:
            # Whatever a file does to a reader of it: the others are to be shown. Its words may hold a value of the file.
            _LOG.warning("reading %s", path, exc_info=True)
            faulty.append(FaultyFile(path, f"{path}: cannot be read ({type(error).__name__}); the log of the code location has it"))
        else:
            found[pipeline.key] = pipeline
    return PipelineFiles(directory, tuple(found.values()), tuple(faulty), key_prefix, skip)


def _files(directory: Path) -> list[Path]:
    return sorted(
        path
        for path in directory.rglob("*")
        if path.is_file() and path.suffix in _SUFFIXES and not any(part.startswith(".") for part in path.relative_to(directory).parts)
    )


def _same_key(pipeline: Pipeline, first: Pipeline) -> Fault:
    return Fault("pipeline_id", f"{pipeline.config.pipeline_id} is that of {first.path}, or differs by - and _ only; this file is not used")
