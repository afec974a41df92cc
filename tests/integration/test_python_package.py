"""`import tallyflow`: a pipeline previewed, run and proved in Python, and the notebook that shows it."""

import os
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from support.dedup_case import event
from support.pipeline_case import PipelineCase

import tallyflow

NOTEBOOK = Path(__file__).resolve().parents[2] / "examples" / "notebook" / "orders.ipynb"

pytestmark = [pytest.mark.integration, pytest.mark.spark]


@pytest.fixture
def environment(case: PipelineCase, monkeypatch: pytest.MonkeyPatch) -> Iterator[PipelineCase]:
    for name, value in case.environment().items():
        monkeypatch.setenv(name, value)
    return case


def test_results_have_types_and_frames(environment: PipelineCase) -> None:
    case = environment
    case.create_topic(1)
    case.send([event(0, 0), event(1, 1), b"{", event(2, 2)], partitions=1)
    pipeline = tallyflow.Pipeline.load(case.file)
    assert pipeline.status() is None
    with pytest.raises(tallyflow.HaltError, match="was never started"):
        pipeline.tally()
    assert case.invoke("run", str(case.file), "--until-caught-up").exit_code == 0

    tally = pipeline.tally()
    assert (tally.residue, [leg.rows_in for leg in tally.legs]) == (0, [4, 4, 3, 1])
    frame = tally.to_pandas()
    assert frame[frame.outcome == "confirmed by ClickHouse"]["rows"].tolist() == [3]
    verified, audited = pipeline.verify(), pipeline.audit()
    assert verified.verdict is audited.verdict is tallyflow.Verdict.CLEAN
    assert (audited.counts["table"], audited.counts["dead letters"]) == (3, 1)
    assert verified.to_arrow().num_rows == 0

    case.client().command(f"ALTER TABLE {case.table} DELETE WHERE id = 1 SETTINGS mutations_sync = 1")
    lost = pipeline.verify()
    assert lost.verdict is tallyflow.Verdict.DIFFERS
    assert not lost.is_clean
    assert lost.to_arrow().select(["place", "kind", "count"]).to_pylist() == [{"place": "rows", "kind": "missing", "count": 1}]


def test_a_run_that_fails_raises_its_own_words(environment: PipelineCase) -> None:
    with pytest.raises(tallyflow.RunFailedError, match=f"topic {environment.topic}"):
        tallyflow.Pipeline.load(environment.file).run()


def test_the_notebook_runs_from_end_to_end(case: PipelineCase, monkeypatch: pytest.MonkeyPatch) -> None:
    names = {"ORDERS_PIPELINE": case.pipeline, "ORDERS_TOPIC": case.topic, "ORDERS_TABLE": case.table}
    for name, value in case.environment(**names).items():
        monkeypatch.setenv(name, value)
    orders = NOTEBOOK.parent.parent / "orders" / "pipeline.yaml"
    assert case.invoke("produce", str(orders), "--count", "2000", "--partitions", "1", **names).exit_code == 0
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    NotebookClient(notebook, timeout=300, kernel_name="python3").execute(cwd=str(NOTEBOOK.parent), env=dict(os.environ))
    last = notebook.cells[-1].outputs[0].text.splitlines()[-1]
    assert last == "clean: every record that was compared is accounted for, once"
