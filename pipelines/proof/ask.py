"""The proofs of a pipeline, each as one call that connects, works and closes: for the commands and for Python."""

from contextlib import closing
from datetime import datetime

from pipelines.config import PipelineConfig
from pipelines.connectors.nats.client import JetStream
from pipelines.home import default_home
from pipelines.progress import Progress, no_progress
from pipelines.proof.audit.report import AuditReport
from pipelines.proof.audit.run import Audit
from pipelines.proof.verification.result import Verification
from pipelines.proof.verification.run import Request, verify
from pipelines.protocol.naming import Names
from pipelines.protocol.tally import Tally, tally


def tally_of(config: PipelineConfig, since: datetime | None = None) -> Tally:
    """Return the tally of a pipeline, as `protocol.tally.tally` does."""
    with closing(JetStream.of(config).connect()) as log:
        return tally(log, Names(config.pipeline_id), config.topology, since)


def audit_of(config: PipelineConfig, examples: int, progress: Progress = no_progress) -> AuditReport:
    """Return the audit of a pipeline of this host, as `Audit` makes it."""
    with closing(JetStream.of(config).connect()) as log:
        return Audit(config, log, examples, progress).run()


def verification_of(
    config: PipelineConfig,
    since: datetime | None,
    until: datetime | None,
    examples: int,
    with_kafka: bool,
    progress: Progress = no_progress,
) -> Verification:
    """Return the verification of a pipeline of this host, as `verification.run.verify` makes it: `since` inclusive, `until` exclusive."""
    directory = Names(config.pipeline_id).directory(default_home())
    with closing(JetStream.of(config).connect()) as log:
        return verify(config, log, Request(directory, since, until, examples, with_kafka), progress)
