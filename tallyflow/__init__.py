"""Tallyflow for Python: what the commands do, with typed results and data frames. `Pipeline.load` begins (docs/python.md).

pipeline.py   one pipeline file, and what is done with it       results.py   what that gives, as dataclasses and frames
"""

from pipelines.errors import ConfigurationError, HaltError, RetryableError, TallyflowError
from pipelines.proof.report import Finding, Gap, Verdict
from tallyflow.pipeline import Message, Pipeline, RunFailedError
from tallyflow.results import LegStatus, LegTally, Outcome, Preview, Proof, Run, Status, Tally

__all__ = [
    "ConfigurationError",
    "Finding",
    "Gap",
    "HaltError",
    "LegStatus",
    "LegTally",
    "Message",
    "Outcome",
    "Pipeline",
    "Preview",
    "Proof",
    "RetryableError",
    "Run",
    "RunFailedError",
    "Status",
    "Tally",
    "TallyflowError",
    "Verdict",
]
