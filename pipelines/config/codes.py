"""The code of the functions that a pipeline file calls: by digest, as it lies beside the file, or as it was at an earlier start."""

from collections.abc import Mapping

from pipelines.config.pipeline import PipelineConfig
from pipelines.config.transforms.python import FunctionConfig


def codes_of(config: PipelineConfig) -> dict[str, str]:
    """Return the digest of the code of every function that the file calls, by its `called_name`; none for code that cannot be read."""
    functions = [asked for transform in config.transforms if isinstance(asked := transform.config, FunctionConfig)]
    return {asked.called_name: code for asked in functions if (code := asked.code())}


def pin_codes(config: PipelineConfig, codes: Mapping[str, str]) -> None:
    """Let the functions of a file stand for the code of these digests, by `called_name`, in place of what lies beside it today."""
    for transform in config.transforms:
        if isinstance(asked := transform.config, FunctionConfig) and asked.called_name in codes:
            asked.pin(codes[asked.called_name])
