"""The directory of pipeline files that Dagster shows: TALLYFLOW_PIPELINES, default `examples/orders`.

A faulty file never takes the code location down: it is listed with its faults, and the sound files work.
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
from pipelines.runner.file_checks import check_file
from pipelines.shipped import shipped

DIRECTORY_VARIABLE = "TALLYFLOW_PIPELINES"
_LOG = logging.getLogger(__name__)
_SUFFIXES = {".yaml", ".yml", ".json"}
_CASES_STEM = ".tests"
"""End of the names of files of cases (`tallyflow test`), which stand beside their pipeline files."""
_DEFAULT = shipped("examples") / "orders"
"""The example whose topic `tallyflow dagster` fills; another one would be shown without records."""


@dataclass(frozen=True)
class Pipeline:
    """One sound file. `key` is the pipeline id in the form of asset keys, groups and op names: `-` becomes `_`."""

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


@dataclass(frozen=True)
class FaultyFile:
    """A file that cannot be used. `message` lists every fault with its path, and holds no value of the file."""

    path: Path
    message: str


@dataclass(frozen=True)
class PipelineFiles:
    """The pipeline files of a directory, each part sorted by path."""

    directory: Path
    pipelines: tuple[Pipeline, ...]
    faulty: tuple[FaultyFile, ...]
    key_prefix: tuple[str, ...] = ()
    """Prefix of asset keys and of the names of jobs, schedules and sensors; it distinguishes two directories in one project."""
    skip: frozenset[str] = frozenset()
    """Names of files that are not pipeline files."""
    is_scheduled: bool | None = None
    """Whether schedules and sensors start enabled; None: as the environment says."""

    def name(self, plain: str) -> str:
        """Return the name of a job, a schedule or a sensor that exists once for all pipelines of the directory."""
        return "_".join((*self.key_prefix, plain))

    def asset_key(self, *path: str) -> list[str]:
        return [*self.key_prefix, *path]

    def get(self, key: str) -> Pipeline:
        """Return the pipeline with this `key`. Raise KeyError."""
        return {pipeline.key: pipeline for pipeline in self.pipelines}[key]


def pipelines_directory(environment: Mapping[str, str] = os.environ) -> Path:
    return Path(environment.get(DIRECTORY_VARIABLE) or _DEFAULT).resolve()


def read_pipeline_files(
    directory: Path,
    environment: Mapping[str, str] = os.environ,
    skip: frozenset[str] = frozenset(),
    key_prefix: tuple[str, ...] = (),
) -> PipelineFiles:
    """Read every YAML and JSON file below `directory` that is not hidden; of files with one key, use the first by path.

    `skip`: names of files that are not pipeline files. Files below TALLYFLOW_HOME are state, and skipped too.

    Connects to nothing. A missing directory is a faulty file of that name.
    """
    if not directory.is_dir():
        return PipelineFiles(
            directory, (), (FaultyFile(directory, f"{directory} is not a directory; set {DIRECTORY_VARIABLE}"),), key_prefix, skip
        )
    by_key: dict[str, Pipeline] = {}
    faulty = []
    home = default_home(environment)
    for path in (one for one in _files(directory) if one.name not in skip and not one.is_relative_to(home)):
        try:
            pipeline = Pipeline(path, load(path, environment), key_prefix)
            check_file(pipeline.config)
            if pipeline.key in by_key:
                raise ConfigurationError(str(path), [_same_key(pipeline, by_key[pipeline.key])])
        except TallyflowError as error:
            faulty.append(FaultyFile(path, str(error)))
        except Exception as error:
            # Whatever a file does to its reader, the others must be shown. The message may hold a value of the file.
            _LOG.warning("reading %s", path, exc_info=True)
            faulty.append(FaultyFile(path, f"{path}: cannot be read ({type(error).__name__}); see the log of the code location"))
        else:
            by_key[pipeline.key] = pipeline
    return PipelineFiles(directory, tuple(by_key.values()), tuple(faulty), key_prefix, skip)


def _files(directory: Path) -> list[Path]:
    return sorted(
        path
        for path in directory.rglob("*")
        if path.is_file()
        and path.suffix in _SUFFIXES
        and not path.stem.endswith(_CASES_STEM)
        and not any(part.startswith(".") for part in path.relative_to(directory).parts)
    )


def _same_key(pipeline: Pipeline, first: Pipeline) -> Fault:
    return Fault(
        "pipeline_id", f"{pipeline.config.pipeline_id} is already used by {first.path} (- and _ count as the same); this file is ignored"
    )
