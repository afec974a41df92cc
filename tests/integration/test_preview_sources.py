"""A preview of what a pipeline holds: stored raw records, dead letters, and its table as it is."""

import json
from typing import Any

import pytest
from support.computed_case import COMPUTE, DEDUP, FILTER, events, with_transforms
from support.pipeline_case import PipelineCase

pytestmark = pytest.mark.integration


def previewed(case: PipelineCase, *arguments: str) -> list[dict[str, Any]]:
    shown = case.invoke("preview", str(case.file), "--json", *arguments)
    assert shown.exit_code == 0, shown.output
    records: list[dict[str, Any]] = json.loads(shown.stdout)
    return records


def corrected(document: dict[str, Any]) -> None:
    with_transforms(FILTER, COMPUTE, DEDUP)(document)
    document["transforms"][1] = json.loads(json.dumps(COMPUTE).replace("CAST(", "TRY_CAST("))


def test_stored_records_and_dead_letters_are_previewed(case: PipelineCase) -> None:
    case.write_file(with_transforms(FILTER, COMPUTE, DEDUP))
    case.create_topic()
    case.send(events(200))
    case.warm_run()
    letters = {(one["_tf_partition"], one["_tf_offset"]): one for one in case.dead_letters()}
    of_all = previewed(case, "--from-raw", "1h")
    assert {(one["partition"], one["offset"]) for one in of_all} == case.records().keys()
    assert {(one["partition"], one["offset"]) for one in of_all if one["outcome"] == "rejected"} == letters.keys()
    (sequence, *_) = {one["position"].split(".")[0] for one in of_all}
    of_frame = [one["position"] for one in previewed(case, "--from-raw", sequence)]
    assert of_frame == [one["position"] for one in of_all if one["position"].startswith(f"{sequence}.")]
    assert len(previewed(case, "--from-raw", "1..9999", "--limit", "1")) < len(of_all)

    of_compute = {at for at, one in letters.items() if one["stage"] == "compute"}
    rejected = previewed(case, "--from-dlq", "stage=compute,since=1h")
    assert {(one["partition"], one["offset"]) for one in rejected if one["outcome"] == "rejected"} == of_compute
    case.write_file(corrected)
    assert {one["outcome"] for one in previewed(case, "--from-dlq", "stage=compute")} == {"row", "duplicate"}
    assert len(previewed(case, "--from-dlq", "waiting")) == len(letters)
    for arguments, code, said in (
        (("--from-raw", "99998..99999"), 1, "the range holds no record; it holds sequences 1 to"),
        (("--from-raw", "yesterday"), 2, "must be a time span such as 1h"),
        (("--from-dlq", "step=parse"), 2, "no condition 'step'"),
        (("--from-dlq", "discarded"), 2, "there is no record to try"),
    ):
        shown = case.invoke("preview", str(case.file), *arguments)
        assert (shown.exit_code, said in " ".join(shown.stderr.replace("│", "").split())) == (code, True), shown.output


def test_the_table_itself_decides_about_defaults(case: PipelineCase) -> None:
    sample = case.directory / "sample.ndjson"
    sample.write_text('{"id": 1}\n')
    missing = case.invoke("preview", str(case.file), "--input", str(sample), "--against-table")
    assert (missing.exit_code, "does not exist" in missing.stderr) == (1, True)
    columns = "id Int64, name String DEFAULT 'none', amount Nullable(Float64)"
    case.client().command(f"CREATE TABLE {case.table} ({columns}) ENGINE = MergeTree ORDER BY id")
    assert [one["outcome"] for one in previewed(case, "--input", str(sample))] == ["rejected"]
    assert [one["outcome"] for one in previewed(case, "--input", str(sample), "--against-table")] == ["row"]
