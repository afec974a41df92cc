"""Rows that are missing from the table of a pipeline, put back in this process."""

from contextlib import closing

from pipelines.config import load
from pipelines.proof.put_back import PutBack, put_back
from pipelines.proof.verification.run import Request
from support.pipeline_case import PipelineCase


def repaired(case: PipelineCase) -> PutBack:
    """Put the missing rows back; return what was found before and after."""
    with closing(case.log()) as log:
        return put_back(load(case.file, case.environment()), log, Request(case.names.directory(case.home)))
