"""What deployment/ has for clusters: sound for Kubernetes, and of one piece with what a pipeline needs there."""

import re
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from pipelines.config import load
from pipelines.config.variables import open_variables, variables_of
from pipelines.runner.file_checks import check_file, check_master

DEPLOYMENT = Path(__file__).parents[3] / "deployment"
KUBERNETES = DEPLOYMENT / "kubernetes"
KUSTOMIZATION = yaml.safe_load((KUBERNETES / "kustomization.yaml").read_text())
DOCUMENTS = [document for name in KUSTOMIZATION["resources"] for document in yaml.safe_load_all((KUBERNETES / name).read_text())]
DRIVER: dict[str, Any] = next(document for document in DOCUMENTS if document["kind"] == "Deployment")
SECRETS = {"KAFKA_SASL_PASSWORD": "k", "CLICKHOUSE_PASSWORD": "c", "NATS_URL": "nats://nats.example.com:4222"}


def _properties(path: Path) -> dict[str, str]:
    lines = [line.split(maxsplit=1) for line in path.read_text().splitlines() if line and not line.startswith("#")]
    return dict(lines)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: f"{document['kind']} {document['metadata']['name']}")
@pytest.mark.parametrize("version", ["1.31", "1.35"])
def test_kubernetes_takes_the_document(document: dict[str, Any], version: str) -> None:
    kubernetes_validate.validate(document, version, strict=True)


def test_the_pipeline_is_sound_and_may_run_on_any_host() -> None:
    config = load(KUBERNETES / "pipeline.yaml", SECRETS)
    check_file(config)
    master = DRIVER["spec"]["template"]["spec"]["containers"][0]["args"][3]
    check_master(config, master)


def test_every_file_of_the_driver_is_there() -> None:
    (generated,) = KUSTOMIZATION["configMapGenerator"]
    (container,) = DRIVER["spec"]["template"]["spec"]["containers"]
    mounted = [Path(one).name for one in container["args"] if one.startswith("/etc/tallyflow/")]
    assert sorted(mounted) == sorted(generated["files"])
    assert all((KUBERNETES / name).is_file() for name in generated["files"])


def test_executors_get_the_secrets_that_do_not_travel() -> None:
    text = (KUBERNETES / "pipeline.yaml").read_text()
    needed = {"NATS_URL", *variables_of(text)} - open_variables(text, SECRETS).keys()
    (container,) = DRIVER["spec"]["template"]["spec"]["containers"]
    secret = container["envFrom"][0]["secretRef"]["name"]
    given = {
        key.removeprefix("spark.kubernetes.executor.secretKeyRef."): value
        for key, value in _properties(KUBERNETES / "spark.conf").items()
        if "secretKeyRef" in key
    }
    assert given == {name: f"{secret}:{name}" for name in needed}


def test_network_and_executors_share_the_label() -> None:
    label = _properties(KUBERNETES / "spark.conf")["spark.kubernetes.executor.label.app"]
    (policy,) = [document for document in DOCUMENTS if document["kind"] == "NetworkPolicy"]
    assert policy["spec"]["podSelector"]["matchLabels"] == {"app": label}
    assert DRIVER["spec"]["template"]["metadata"]["labels"]["app"] == label


def test_an_executor_is_started_with_what_spark_gives_its_pod(tmp_path: Path) -> None:
    """By the variables of Spark's documented image, with a `java` that says how it was called."""
    java = tmp_path / "java"
    java.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    java.chmod(0o755)
    given = {"DRIVER_URL": "spark://d", "EXECUTOR_ID": "7", "APPLICATION_ID": "app", "EXECUTOR_POD_IP": "10.0.0.9"}
    given |= {"RESOURCE_PROFILE_ID": "0", "EXECUTOR_POD_NAME": "pod", "EXECUTOR_CORES": "3", "EXECUTOR_MEMORY": "512m", "HOME": "/spark"}
    given |= {f"JAVA_OPT_{number}": f"-Dn={number} x" for number in (10, 2, 0)}
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", **{f"SPARK_{name}": value for name, value in given.items()}}
    script = DEPLOYMENT / "image" / "entrypoint.sh"
    called = subprocess.run([script, "executor"], env=environment, capture_output=True, text=True, check=True).stdout.splitlines()
    backend = called.index("org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend")
    assert called[:backend] == ["-Dn=0 x", "-Dn=2 x", "-Dn=10 x", "-Xms512m", "-Xmx512m", "-cp", "/spark/conf:/spark/jars/*"]
    assert dict(zip(called[backend + 1 :: 2], called[backend + 2 :: 2], strict=True)) == {
        "--driver-url": "spark://d",
        "--executor-id": "7",
        "--cores": "3",
        "--app-id": "app",
        "--hostname": "10.0.0.9",
        "--resourceProfileId": "0",
        "--podName": "pod",
    }


def test_the_image_has_the_executors_of_kubernetes() -> None:
    """The wheel of pyspark brings the classes that the image starts."""
    import pyspark

    jars = Path(pyspark.__file__).parent / "jars"
    assert list(jars.glob("spark-kubernetes_*.jar"))
    assert re.search(r"/opt/entrypoint\.sh", (DEPLOYMENT / "image" / "Dockerfile").read_text())
