"""All that we use of Dagster beside its public names, in one place: `tests/unit/test_dagster_private.py` says what must hold of it.

pyproject.toml pins Dagster below the next minor release. What each is for:
the tables of the event log (pruning, which Dagster has none of), the tags of data versions (reports of seams, without a run),
the newest results of checks (alerts, which the open source has none of), the clock that tests of schedules move.
"""

from collections.abc import Iterator, Mapping, Sequence

import dagster as dg
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
    "SqlEventLogStorage",
    "SqlEventLogStorageTable",
    "TranslationFn",
    "TranslationFnResolver",
    "UnresolvedAssetJobDefinition",
    "get_current_datetime",
    "get_input_data_version_tag",
    "get_input_event_pointer_tag",
    "results_since",
]

ASSET_CHECK_FAILED = "DagsterAssetCheckFailedError"
"""The error of a step whose blocking check has failed: the check says why."""
_AT_ONCE = 50


def results_since(
    instance: dg.DagsterInstance, keys: Sequence[dg.AssetCheckKey], seen: Mapping[str, int]
) -> Iterator[tuple[dg.AssetCheckKey, int, str | None, dg.AssetCheckEvaluation]]:
    """(check, id, partition, result) of the checks that were made since, each check's in order; of one that was never seen the newest.

    `seen`: the last id by `key.to_user_string()`. One query where nothing is new. At most 50 of one check: the newest.
    """
    storage = instance.event_log_storage
    for key, newest in storage.get_latest_asset_check_execution_by_key(keys).items():
        last = seen.get(key.to_user_string())
        if last is not None and newest.id <= last:
            continue
        made = storage.get_asset_check_execution_history(key, limit=_AT_ONCE, status={*_MADE})
        wanted = [one for one in made if last is not None and one.id > last] if last is not None else [*made[:1]]
        yield from ((key, one.id, one.partition, evaluation) for one in reversed(wanted) if (evaluation := _evaluation(one)))


_MADE = (AssetCheckExecutionRecordStatus.SUCCEEDED, AssetCheckExecutionRecordStatus.FAILED)


def _evaluation(record: AssetCheckExecutionRecord) -> dg.AssetCheckEvaluation | None:
    return record.evaluation if isinstance(record.evaluation, dg.AssetCheckEvaluation) else None
