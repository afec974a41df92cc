"""All private parts of Dagster that we use, in one place.

`tests/unit/dagster_project/test_dagster_private.py` tests what we rely on.

pyproject.toml pins Dagster below the next minor release. Uses: the tables of the event log (Dagster has no pruning), the tags of data
versions (reports of assets without a run), the newest results of checks (open-source Dagster has no alerts on checks), the configuration
of a resource as it is when a run begins, and the clock that tests of schedules move.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import dagster as dg
from dagster._config.post_process import post_process_config
from dagster._core.definitions.data_version import (
    CODE_VERSION_TAG,
    DATA_VERSION_IS_USER_PROVIDED_TAG,
    DATA_VERSION_TAG,
    DEFAULT_DATA_VERSION,
    NULL_EVENT_POINTER,
    get_input_data_version_tag,
    get_input_event_pointer_tag,
)
from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition
from dagster._core.storage.asset_check_execution_record import AssetCheckExecutionRecord, AssetCheckExecutionRecordStatus
from dagster._core.storage.event_log.schema import AssetCheckExecutionsTable, AssetEventTagsTable, SqlEventLogStorageTable
from dagster._core.storage.event_log.sql_event_log import SqlEventLogStorage
from dagster._time import get_current_datetime
from dagster.components.utils.translation import TranslationFn, TranslationFnResolver

__all__ = [
    "CODE_VERSION_TAG",
    "DATA_VERSION_IS_USER_PROVIDED_TAG",
    "DATA_VERSION_TAG",
    "DEFAULT_DATA_VERSION",
    "NULL_EVENT_POINTER",
    "AssetCheckExecutionsTable",
    "AssetEventTagsTable",
    "Looked",
    "SqlEventLogStorage",
    "SqlEventLogStorageTable",
    "TranslationFn",
    "TranslationFnResolver",
    "UnresolvedAssetJobDefinition",
    "get_current_datetime",
    "get_input_data_version_tag",
    "get_input_event_pointer_tag",
    "initialized",
    "results_since",
]

ASSET_CHECK_FAILED = "DagsterAssetCheckFailedError"
"""The error of a step whose blocking check has failed; the check has the reason."""
_AT_ONCE = 50


@dataclass(frozen=True)
class Looked:
    """Which results of a check were read: up to the id `to`, and `also`, which are newer than a result that is still pending."""

    to: int = 0
    also: tuple[int, ...] = ()


Result = tuple[str | None, dg.AssetCheckEvaluation]
"""A partition (None for an unpartitioned asset) and the evaluation."""


def results_since(
    instance: dg.DagsterInstance, keys: Sequence[dg.AssetCheckKey], looked: Mapping[str, Looked]
) -> Iterator[tuple[dg.AssetCheckKey, Looked, list[Result]]]:
    """Yield each check with new results: what has been read now, and the results in order.

    For a check that was never seen, only the newest result.

    `looked` by `key.to_user_string()`. One query if nothing is new. At most the 50 newest results of a check; older ones count as read.
    """
    storage = instance.event_log_storage
    for key, newest in storage.get_latest_asset_check_execution_by_key(keys).items():
        before = looked.get(key.to_user_string())
        if before is not None and newest.id <= before.to:
            continue
        history = [*reversed(storage.get_asset_check_execution_history(key, limit=_AT_ONCE))]
        made = [(record.id, record.partition, evaluation) for record in history if (evaluation := _evaluation(record)) is not None]
        pending = [record.id for record in history if record.status is AssetCheckExecutionRecordStatus.PLANNED]
        to = max(before.to if before else 0, min(pending) - 1 if pending else history[-1].id)
        new = made[-1:] if before is None else [entry for entry in made if entry[0] > before.to and entry[0] not in before.also]
        also = tuple(number for number, _, _ in made if number > to)
        yield key, Looked(to, also), [(partition, evaluation) for _, partition, evaluation in new]


@contextmanager
def initialized(resource: dg.ConfigurableResource[Any], context: dg.InitResourceContext) -> Iterator[Any]:
    """Initialize a resource with its own configuration in the context of a run; `dg.EnvVar` in it is read now.

    Its public `process_config_and_initialize_cm` makes a whole Dagster instance, with databases, for a context of its own: 0.1 s of CPU.
    """
    found = post_process_config(resource._config_schema.config_type, resource._convert_to_config_dictionary())
    if not found.success:
        raise dg.DagsterInvalidConfigError("initializing a resource", found.errors, found)  # type: ignore[no-untyped-call]
    with resource.from_resource_context_cm(context.replace_config(found.value), resource.nested_resources) as made:
        yield made


def _evaluation(record: AssetCheckExecutionRecord) -> dg.AssetCheckEvaluation | None:
    """Return the evaluation of a record; None if it is pending or was never finished."""
    return record.evaluation if isinstance(record.evaluation, dg.AssetCheckEvaluation) else None
