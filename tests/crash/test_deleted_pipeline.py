"""A pipeline deleted and made again under the same name is a new pipeline: nothing of the old one can swallow its rows."""

import pytest
from support.pipeline_case import PipelineCase

from pipelines.protocol.naming import ROLES

pytestmark = pytest.mark.crash


def _delete(case: PipelineCase, *arguments: str) -> None:
    deleted = case.invoke("delete", str(case.file), "--yes", *arguments)
    assert deleted.exit_code == 0, deleted.stderr
    log = case.log()
    assert [log.state(case.names.stream(role)) for role in ROLES] == [None] * len(ROLES)
    log.close()
    assert not case.names.directory(case.home).exists()


def test_a_deleted_pipeline_begins_anew_under_the_same_name(case: PipelineCase) -> None:
    case.create_topic()
    case.send_events(3000, bad_every=100)
    case.warm_run()
    case.check()
    _delete(case)
    assert case.count() == 0
    case.warm_run()
    assert case.count() == 2970
    case.check()


# TRUNCATE takes the remembered tokens along; DELETE leaves them, as does a table that others write to.
@pytest.mark.parametrize("emptied_by", ["TRUNCATE TABLE {}", "ALTER TABLE {} DELETE WHERE 1 SETTINGS mutations_sync = 2"])
def test_old_tokens_do_not_swallow_rows_of_a_successor(case: PipelineCase, emptied_by: str) -> None:
    case.create_topic()
    case.send_events(3000)
    case.warm_run()
    _delete(case, "--keep-table")
    assert case.count() == 3000
    case.client().command(emptied_by.format(case.table))
    assert case.count() == 0
    case.warm_run()
    case.check()
