"""What Dagster loads of a directory of pipeline files: the graph, its metadata, and that nothing secret is in it. No system is there."""

import os
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import yaml
from dagster.components.testing import create_defs_folder_sandbox

from dagster_project.components import TallyflowPipelines
from dagster_project.definitions import build_definitions
from dagster_project.pipeline_files import PipelineFiles, read_pipeline_files

ROOT = Path(__file__).resolve().parents[3]
EXAMPLE = ROOT / "examples" / "orders" / "pipeline.yaml"
ENVIRONMENT = {"KAFKA_BOOTSTRAP": "k1:9092,k2:9092", "CLICKHOUSE_HOST": "ch", "CLICKHOUSE_PORT": "8123"}
CANARY = "canary-7d1f"


def document(**changed: Any) -> dict[str, Any]:
    text = EXAMPLE.read_text().replace("${ORDERS_PIPELINE:-orders-demo}", "orders-demo")
    return {**yaml.safe_load(text), **changed}


def read_files(directory: Path, *documents: dict[str, Any], **environment: str) -> PipelineFiles:
    for number, one in enumerate(documents):
        (directory / f"{number}.yaml").write_text(yaml.safe_dump(one, sort_keys=False))
    return read_pipeline_files(directory, {**ENVIRONMENT, **environment})


def definitions(directory: Path, *documents: dict[str, Any], **environment: str) -> dg.Definitions:
    return build_definitions(read_files(directory, *documents, **environment))


def parents(defs: dg.Definitions) -> dict[str, set[str]]:
    graph = defs.resolve_asset_graph()
    nodes = (graph.get(key) for key in graph.get_all_asset_keys())
    return {node.key.to_user_string(): {parent.to_user_string() for parent in node.parent_keys} for node in nodes}


def spec(defs: dg.Definitions, *key: str) -> dg.AssetSpec:
    return next(one for one in defs.resolve_all_asset_specs() if one.key == dg.AssetKey(key))


def test_a_pipeline_is_one_asset_per_seam_from_the_topic_on(tmp_path: Path) -> None:
    defs = definitions(tmp_path, document())
    dg.Definitions.validate_loadable(defs)
    assert parents(defs) == {
        "kafka/orders": set(),
        "orders_demo/raw_stream": {"kafka/orders"},
        "orders_demo/dedup_store": {"orders_demo/raw_stream"},
        "orders_demo/out_stream": {"orders_demo/dedup_store"},
        "orders_demo/clickhouse_table": {"orders_demo/out_stream"},
        "orders_demo/dead_letters": {"orders_demo/raw_stream", "orders_demo/out_stream"},
        "orders_demo/published": {"orders_demo/clickhouse_table"},
        "orders_demo/dedup_compaction": {"orders_demo/dedup_store"},
        "orders_demo/reprocessed_letters": {"orders_demo/dead_letters"},
        "orders_demo/verification": {"orders_demo/clickhouse_table"},
    }


def test_without_dedup_there_is_no_key_store_to_compact(tmp_path: Path) -> None:
    found = parents(definitions(tmp_path, document(transforms=[])))
    assert found["orders_demo/out_stream"] == {"orders_demo/raw_stream"}
    assert not {"orders_demo/dedup_store", "orders_demo/dedup_compaction"} & found.keys()


def test_a_join_has_stores_of_its_own_to_compact(tmp_path: Path) -> None:
    one = document(transforms=[])
    (orders,) = one["sources"]
    customers = {**orders, "source_id": "customers", "topic": "customers"}
    sides = [{"source_id": source["source_id"], "key": "order_id", "time_window": "1h"} for source in (orders, customers)]
    one["sources"] = [orders, customers]
    outputs = [{"source_id": orders["source_id"], "name": name} for name in sorted(fields_of_the_mapping(one))]
    one["join"] = {"enabled": True, "left_source": sides[0], "right_source": sides[1], "output_fields": outputs}
    found = parents(definitions(tmp_path, one))
    assert found["orders_demo/join_stores"] == {"orders_demo/raw_stream"}
    assert found["orders_demo/out_stream"] == found["orders_demo/join_compaction"] == {"orders_demo/join_stores"}
    assert not {"orders_demo/dedup_store", "orders_demo/dedup_compaction"} & found.keys()


def fields_of_the_mapping(one: dict[str, Any]) -> set[str]:
    return {column["name"] for column in one["sink"]["mapping"]}


def test_a_topic_read_twice_is_one_asset_with_all_fields(tmp_path: Path) -> None:
    other = document(pipeline_id="orders-copy")
    other["sources"][0]["schema_fields"] = [{"name": "order_id", "type": "string"}, {"name": "extra", "type": "int"}]
    other["transforms"] = []
    other["sink"]["mapping"] = [{"name": "order_id", "column_name": "order_id", "column_type": "String"}]
    other["sink"]["order_by"] = ["order_id"]
    defs = definitions(tmp_path, document(), other)
    dg.Definitions.validate_loadable(defs)
    columns = [column.name for column in spec(defs, "kafka", "orders").metadata["dagster/column_schema"].columns]
    assert {"extra", "customer.city"} <= {*columns}
    assert [key for key in parents(defs) if key.startswith("kafka/")] == ["kafka/orders"]


def test_the_table_has_its_columns_their_lineage_and_its_name(tmp_path: Path) -> None:
    table = spec(definitions(tmp_path, document()), "orders_demo", "clickhouse_table")
    columns = {column.name: column.type for column in table.metadata["dagster/column_schema"].columns}
    assert columns["note"] == "Nullable(String)"
    assert columns["_tf_offset"] == "Int64"
    lineage = table.metadata["dagster/column_lineage"].deps_by_column
    assert lineage["city"] == [dg.TableColumnDep(asset_key=dg.AssetKey(["kafka", "orders"]), column_name="customer.city")]
    assert table.metadata["dagster/table_name"] == "default.orders"
    assert table.metadata["dagster/uri"] == "http://ch:8123/default/orders"
    assert table.kinds == {"clickhouse", "table"}
    assert table.metadata["dagster/code_references"].code_references[0].file_path.endswith("0.yaml")


def test_every_further_table_is_an_asset_of_its_own(tmp_path: Path) -> None:
    one = document()
    sink = one.pop("sink")
    mapping = [{"name": "order_id", "column_name": "id", "column_type": "String"}]
    large = {**sink, "id": "large", "when": "price > 100", "table": "large", "mapping": mapping, "order_by": []}
    defs = definitions(tmp_path, {**one, "sinks": [{**sink, "id": "all"}, large]})
    dg.Definitions.validate_loadable(defs)
    assert parents(defs)["orders_demo/clickhouse_table_large"] == {"orders_demo/out_stream"}
    table = spec(defs, "orders_demo", "clickhouse_table_large")
    assert table.metadata["dagster/table_name"] == "default.large"
    assert [*table.metadata["dagster/column_lineage"].deps_by_column] == ["id"]
    assert table.description == "The records that price > 100 takes, each exactly once."
    # The checks, of which a blocking one holds back every publication, belong to the first table.
    assert parents(defs)["orders_demo/published_large"] == {"orders_demo/clickhouse_table", "orders_demo/clickhouse_table_large"}


def test_a_fallbacks_table_descends_from_the_one_that_refuses(tmp_path: Path) -> None:
    one = document()
    sink = one.pop("sink")
    mapping = [{"name": "order_id", "column_name": "id", "column_type": "String"}]
    rest = {**sink, "id": "rest", "table": "rest", "mapping": mapping, "order_by": []}
    defs = definitions(tmp_path, {**one, "sinks": [{**sink, "id": "all", "on_refused": {"sink": "rest"}}, rest]})
    assert parents(defs)["orders_demo/clickhouse_table_rest"] == {"orders_demo/clickhouse_table"}


def test_a_computed_column_descends_from_the_fields_it_reads(tmp_path: Path) -> None:
    first = {"type": "compute", "config": {"fields": [{"name": "total", "expression": "price * quantity"}]}}
    second = {"type": "compute", "config": {"fields": [{"name": "label", "expression": "dish || ' ' || total"}]}}
    sink = document()["sink"]
    mapping = [*sink["mapping"], {"name": "label", "column_name": "label", "column_type": "Nullable(String)"}]
    changed = document(transforms=[first, second], sink={**sink, "mapping": mapping})
    lineage = spec(definitions(tmp_path, changed), "orders_demo", "clickhouse_table").metadata["dagster/column_lineage"].deps_by_column
    assert [dep.column_name for dep in lineage["label"]] == ["dish", "price", "quantity"]
    assert [dep.column_name for dep in lineage["dish"]] == ["dish"]


def test_owners_tags_and_freshness_come_from_the_file(tmp_path: Path) -> None:
    metadata = {"tags": ["example", "two words", "tier:gold", "tier:silver"], "owners": ["team:orders", "ana@example.com"]}
    checks = {"freshness": {"warn_after": "3m", "fail_after": "20m"}}
    defs = definitions(tmp_path, document(metadata=metadata, checks=checks))
    table, out = (spec(defs, "orders_demo", name) for name in ("clickhouse_table", "out_stream"))
    assert (table.owners, table.group_name) == (["team:orders", "ana@example.com"], "orders_demo")
    tags = {name: value for name, value in table.tags.items() if not name.startswith("dagster/")}
    assert tags == {"example": "", "two_words": "", "tier": "gold", "tier_silver": ""}
    assert out.freshness_policy == dg.FreshnessPolicy.time_window(fail_window=timedelta(minutes=25), warn_window=timedelta(minutes=8))


def test_the_table_has_no_freshness_policy_of_its_own(tmp_path: Path) -> None:
    """What a policy goes by, materializations without end, would leave the table's checks not evaluated."""
    assert spec(definitions(tmp_path, document()), "orders_demo", "clickhouse_table").freshness_policy is None
    off = definitions(tmp_path, document(checks={"freshness": {"enabled": False}}))
    assert spec(off, "orders_demo", "out_stream").freshness_policy is None


def checks_of(defs: dg.Definitions) -> dict[str, bool]:
    """Whether each check is blocking, by name."""
    graph = defs.resolve_asset_graph()
    return {key.name: graph.get_check_spec(key).blocking for key in graph.asset_check_keys if key.asset_key.path[-1] == "clickhouse_table"}


def test_checks_that_the_file_switches_off_are_not_there(tmp_path: Path) -> None:
    checks = {"gaps": {"enabled": False}, "views": {"severity": "warn"}, "dead_letters": {"severity": "error"}}
    assert checks_of(definitions(tmp_path, document(checks=checks))) == {
        "conservation": True,
        "duplicates": True,
        "verification": True,
        "freshness": False,
        "dead_letters": True,
        "schema_drift": True,
        "views": False,
        "insert_window": False,
    }


def test_a_faulty_file_is_listed_and_takes_nothing_down(tmp_path: Path) -> None:
    defs = definitions(tmp_path, document(), {"version": "v3", "pipeline_id": "broken"})
    dg.Definitions.validate_loadable(defs)
    assert "orders_demo/raw_stream" in parents(defs)
    reported = spec(defs, "faulty_files", "1.yaml")
    assert reported.group_name == "faulty_files"
    assert "sources: is required" in (reported.description or "")


def test_a_directory_that_is_not_there_is_listed_as_faulty(tmp_path: Path) -> None:
    defs = build_definitions(read_pipeline_files(tmp_path / "nowhere", {}))
    dg.Definitions.validate_loadable(defs)
    assert "is not a directory" in (spec(defs, "faulty_files", "nowhere").description or "")


def test_every_job_schedule_and_sensor_says_what_it_does(tmp_path: Path) -> None:
    defs = definitions(tmp_path, document())
    named = [*defs.resolve_all_job_defs(), *(defs.schedules or ()), *(defs.sensors or ())]
    assert [one.name for one in named if not one.description and one.name != "__ASSET_JOB"] == []


def test_the_launchpad_knows_the_default_of_every_optional_field(tmp_path: Path) -> None:
    """What has no default there is left out when the launchpad writes the configuration."""
    start = definitions(tmp_path, document()).resolve_job_def("start_pipeline").get_node_named("start_pipeline_op").definition
    fields = start.config_schema.config_type.fields
    assert {name: field.default_value for name, field in fields.items() if not field.is_required} == {
        "accept": False,
        "legs": ["ingest", "process", "sink", "dead_letters"],
    }


def plain(value: Any) -> str:
    """All that a definition would show, as one text."""
    if isinstance(value, Mapping):
        return " ".join(plain(one) for pair in value.items() for one in pair)
    return " ".join(map(plain, value)) if type(value) in (list, tuple, set) else repr(value)


def test_no_secret_and_no_credential_is_in_the_definitions(tmp_path: Path) -> None:
    made = document(nats={"url": f"nats://{CANARY}-user:{CANARY}@nats:4222"})
    made["sink"]["connection_params"]["password"] = CANARY
    made["sources"][0]["connection_params"] |= {
        "protocol": "SASL_SSL",
        "mechanism": "PLAIN",
        "username": "kafka",
        "password": CANARY,
    }
    defs = definitions(tmp_path, made)
    specs = defs.resolve_all_asset_specs()
    assert len(specs) > 8
    assert CANARY not in plain([[one.metadata, one.description, one.tags] for one in specs])
    assert CANARY not in plain(dict(defs.metadata))


@pytest.mark.parametrize("status", ["", "running"])
def test_schedules_run_on_request_and_letters_on_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: str) -> None:
    monkeypatch.setenv("TALLYFLOW_SCHEDULES", status)
    defs = definitions(tmp_path, document())
    running = {one.name for one in defs.schedules or () if one.default_status is dg.DefaultScheduleStatus.RUNNING}
    wanted = {"verify_orders_demo_hourly", "prune_event_log_nightly"}
    assert running == (wanted if status else set())
    (automation,) = [one for one in defs.sensors or () if one.name == "automate_pipelines"]
    assert automation.default_status is (dg.DefaultSensorStatus.RUNNING if status else dg.DefaultSensorStatus.STOPPED)
    assert {one.name for one in defs.schedules or ()} - wanted == {"reprocess_orders_demo_daily"}


def keys_of(defs: dg.Definitions) -> tuple[set[str], set[str], set[str]]:
    names = {job.name for job in defs.resolve_all_job_defs()}
    return {*parents(defs)}, names, {one.name for one in defs.sensors or ()}


def test_the_component_gives_what_the_directory_gives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    with create_defs_folder_sandbox() as sandbox:
        path = sandbox.scaffold_component(TallyflowPipelines, defs_yaml_contents=COMPONENT)
        (path / "pipelines").mkdir()
        (path / "pipelines" / "0.yaml").write_text(yaml.safe_dump(document()))
        with sandbox.load_component_and_build_defs(path) as (component, defs):
            assert isinstance(component, TallyflowPipelines)
            (tmp_path / "plain").mkdir()
            assets, jobs, sensors = keys_of(definitions(tmp_path / "plain", document()))
            assert keys_of(defs) == (assets, jobs - {"prune_event_log"}, sensors)


COMPONENT = {"type": "dagster_project.components.TallyflowPipelines", "attributes": {"path": "pipelines"}}


def test_a_translation_that_changes_a_key_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    attributes = {"path": "pipelines", "translation": {"key": "other"}}
    with create_defs_folder_sandbox() as sandbox:
        path = sandbox.scaffold_component(TallyflowPipelines, defs_yaml_contents={**COMPONENT, "attributes": attributes})
        (path / "pipelines").mkdir()
        (path / "pipelines" / "0.yaml").write_text(yaml.safe_dump(document()))
        with pytest.raises(Exception, match="Error while building definitions") as refused, sandbox.load_component_and_build_defs(path):
            pass
    assert "the key must stay; set key_prefix" in str(refused.value.__cause__)


def test_a_defs_yaml_beside_the_pipelines_is_no_pipeline(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    with create_defs_folder_sandbox() as sandbox:
        path = sandbox.scaffold_component(TallyflowPipelines, defs_yaml_contents={"type": COMPONENT["type"]})
        (path / "0.yaml").write_text(yaml.safe_dump(document()))
        with sandbox.load_component_and_build_defs(path) as (_, defs):
            assert "orders_demo/clickhouse_table" in parents(defs)
            assert "faulty" not in str(defs.metadata)


def test_the_loaders_name_the_same_definitions() -> None:
    workspace = yaml.safe_load((ROOT / "workspace.yaml").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    named = {
        workspace["load_from"][0]["python_module"],
        project["tool"]["dagster"]["module_name"],
        project["tool"]["dg"]["project"]["code_location_target_module"],
    }
    assert named == {"dagster_project.definitions"}
    registry = project["project"]["entry-points"]["dagster_dg_cli.registry_modules"]
    assert registry == {"tallyflow": "dagster_project.components"}


def test_a_faulty_file_is_logged_only_where_it_is_asked_for(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    definitions(tmp_path, document(), document(pipeline_id="x y"))
    (reported,) = caplog.messages
    assert reported.startswith(f"ignoring a faulty pipeline file: {tmp_path / '1.yaml'}: 1 fault\n  - pipeline_id: must be")
    program = "import dagster_project.components"
    environment = {**os.environ, "TALLYFLOW_PIPELINES": str(tmp_path / "no-such-directory")}
    found = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert "no-such-directory" not in found.stderr


def test_importing_the_command_line_imports_no_dagster() -> None:
    program = "import sys, pipelines.cli.app; print([name for name in sys.modules if name.split('.')[0] == 'dagster'])"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_a_launch_does_not_choose_what_is_executed(tmp_path: Path) -> None:
    job = definitions(tmp_path, document()).resolve_job_def("start_pipeline")
    ops = {"start_pipeline_op": {"config": {"pipeline": "orders-demo"}}}
    for chosen in ({"home": "/elsewhere"}, {"command": ["sh", "-c", "id"]}, {"run_options": ["--master", "spark://elsewhere:7077"]}):
        with pytest.raises(dg.DagsterInvalidConfigError, match="unexpected config entry"):
            dg.validate_run_config(job, {"ops": ops, "resources": {"streaming_jobs": {"config": chosen}}})


LAUNCHES: list[tuple[str, dict[str, Any]]] = [
    ("start_pipeline", {"pipeline": {"env": "SECRET"}}),
    ("start_pipeline", {"pipeline": "orders-demo", "legs": [{"env": "SECRET"}]}),
    ("verify_pipeline", {"pipeline": "orders-demo", "since": {"env": "SECRET"}}),
    ("verify_pipeline", {"pipeline": "orders-demo", "examples": {"env": "SECRET"}}),
    ("reprocess_dead_letters", {"pipeline": "orders-demo", "everything": {"env": "SECRET"}}),
    ("reprocess_dead_letters", {"pipeline": "orders-demo", "key": {"env": "SECRET"}}),
    ("discard_dead_letters", {"pipeline": "orders-demo", "reason": {"env": "SECRET"}}),
    ("prune_event_log", {"keep_days": {"env": "SECRET"}}),
]


@pytest.mark.parametrize(("job", "config"), LAUNCHES)
def test_no_launch_reads_a_variable_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, job: str, config: dict[str, Any]
) -> None:
    monkeypatch.setenv("SECRET", CANARY)
    made = definitions(tmp_path, document()).resolve_job_def(job)
    with pytest.raises(dg.DagsterInvalidConfigError) as error:
        dg.validate_run_config(made, {"ops": {f"{job}_op": {"config": config}}})
    assert CANARY not in str(error.value)


def test_no_asset_takes_a_variable_of_the_environment(tmp_path: Path) -> None:
    """Every field of every op, whatever it is of: none is of a type that takes `{env: NAME}`."""
    defs = definitions(tmp_path, document())
    kinds = [
        field.config_type
        for job in defs.resolve_all_job_defs()
        for node in job.all_node_defs
        if isinstance(node, dg.OpDefinition) and hasattr(node.config_schema.config_type, "fields")
        for field in node.config_schema.config_type.fields.values()
    ]
    assert len(kinds) > 20
    for kind in kinds:
        while hasattr(kind, "inner_type"):
            kind = kind.inner_type
        assert kind not in (dg.StringSource, dg.IntSource, dg.BoolSource)


@pytest.mark.parametrize(
    ("resource", "config"),
    [
        ("tallyflow_spark", {"spark_config": {"spark.submit.pyFiles": "http://elsewhere/evil.zip"}}),
        ("tallyflow_spark", {"master": "spark://elsewhere:7077"}),
        ("streaming_jobs", {"clickhouse": {"host": "elsewhere"}}),
        ("streaming_jobs", {"home": {"env": "SECRET"}}),
    ],
)
def test_no_launch_sets_a_resource(tmp_path: Path, resource: str, config: dict[str, Any]) -> None:
    job = definitions(tmp_path, document()).resolve_job_def("compact_keys")
    ops = {"compact_keys_op": {"config": {"pipeline": "orders-demo"}}}
    assert dg.validate_run_config(job, {"ops": ops})
    with pytest.raises(dg.DagsterInvalidConfigError, match="unexpected config entry"):
        dg.validate_run_config(job, {"ops": ops, "resources": {resource: {"config": config}}})


def test_the_launchpad_offers_the_pipelines_that_there_are(tmp_path: Path) -> None:
    job = definitions(tmp_path, document(), document(pipeline_id="second")).resolve_job_def("start_pipeline")
    field = job.get_node_named("start_pipeline_op").definition.config_schema.config_type.fields["pipeline"]
    assert [one.config_value for one in field.config_type.enum_values] == ["orders-demo", "second"]
    assert field.is_required


def test_publication_and_checks_are_due_in_one_run(tmp_path: Path) -> None:
    """What is asked for at one moment is one run, in which a failed blocking check holds the publication back."""
    defs = definitions(tmp_path, document())
    key = ["orders_demo", "clickhouse_table"]
    with dg.DagsterInstance.ephemeral() as instance:
        at = datetime(2026, 3, 1, 3, 19, tzinfo=UTC)
        before = dg.evaluate_automation_conditions(defs, instance, evaluation_time=at)
        first = dg.evaluate_automation_conditions(defs, instance, evaluation_time=at + timedelta(minutes=2), cursor=before.cursor)
        assert first.total_requested == 0, "the pipeline was never started"
        instance.report_runless_asset_event(dg.AssetMaterialization(key))
        instance.report_runless_asset_event(dg.AssetMaterialization(["orders_demo", "dedup_store"]))
        due = dg.evaluate_automation_conditions(defs, instance, evaluation_time=at + timedelta(minutes=3), cursor=first.cursor)
        requested = {one.key.to_user_string() for one in due.results if one.true_subset.size}
        names = ("conservation", "duplicates", "gaps", "freshness", "dead_letters", "views")
        assert {f"orders_demo/clickhouse_table:{name}" for name in names} <= requested
        assert {"orders_demo/published", "orders_demo/dedup_compaction"} <= requested
        again = dg.evaluate_automation_conditions(defs, instance, evaluation_time=at + timedelta(minutes=4), cursor=due.cursor)
        assert again.total_requested == 0
        later = dg.evaluate_automation_conditions(defs, instance, evaluation_time=at + timedelta(hours=1, minutes=2), cursor=again.cursor)
        assert "orders_demo/published" in {one.key.to_user_string() for one in later.results if one.true_subset.size}
