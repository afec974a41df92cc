"""Settings of Spark by where its executors are, without a JVM."""

from pathlib import Path

import pytest

from pipelines.engine.session import LOOPBACK_SETTINGS, _names_set_in, _refused, _settings_for, check_answers, is_cluster
from pipelines.errors import RetryableError

SECURE = {"spark.authenticate": "true", "spark.network.crypto.enabled": "true"}


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("SPARK_LOCAL_IP", "TALLYFLOW_DRIVER_POD"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))


@pytest.mark.parametrize(
    ("master", "cluster"),
    [
        ("local", False),
        ("local[2]", False),
        ("local[*,4]", False),
        ("local-cluster[2,1,1024]", True),
        ("spark://host:7077", True),
        ("k8s://https://host", True),
        ("yarn", True),
        (None, False),
    ],
)
def test_executors_beside_the_driver_make_a_cluster(master: str | None, cluster: bool) -> None:
    assert is_cluster(master) == cluster


def test_on_one_host_everything_listens_on_loopback_only() -> None:
    assert _settings_for("local[2,4]", None) == LOOPBACK_SETTINGS


@pytest.mark.parametrize("master", ["spark://10.0.0.5:7077", "k8s://https://host:6443", "yarn"])
def test_a_cluster_is_authenticated_and_encrypted(master: str) -> None:
    found = _settings_for(master, None)
    assert found.items() >= SECURE.items()
    assert not found.keys() & LOOPBACK_SETTINGS.keys()


def test_a_cluster_on_loopback_stays_there() -> None:
    found = _settings_for("spark://127.0.0.1:7077", None)
    assert found.items() >= {**SECURE, **LOOPBACK_SETTINGS}.items()


def test_a_cluster_in_one_jvm_has_a_secret_of_its_own() -> None:
    first, second = (_settings_for("local-cluster[2,1,1024]", None)["spark.authenticate.secret"] for _ in range(2))
    assert len(first) >= 32 and first != second


@pytest.mark.parametrize(
    "given", ["spark.executor.memory 2g", "spark.executor.memory=2g", "  spark.executor.memory: 2g", "!x\nspark.executor.memory\t2g"]
)
def test_the_operators_file_wins_over_the_defaults(tmp_path: Path, given: str) -> None:
    file = tmp_path / "other.conf"
    file.write_text(f"# spark.cores.max 9\n{given}\n")
    found = _settings_for("spark://host:7077", file)
    assert "spark.executor.memory" not in found and "spark.cores.max" in found


def test_the_usual_file_counts_where_no_other_is_named(tmp_path: Path) -> None:
    (tmp_path / "spark-defaults.conf").write_text("spark.cores.max 12\n")
    assert "spark.cores.max" not in _settings_for("spark://host:7077", None)
    assert _names_set_in(tmp_path / "missing.conf") == set()


def test_a_cluster_is_asked_for_twice_the_slots_of_the_tasks() -> None:
    assert [_settings_for("spark://host:7077", None, tasks)["spark.cores.max"] for tasks in (3, 7)] == ["6", "14"]


def test_executors_on_kubernetes_belong_to_the_drivers_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TALLYFLOW_DRIVER_POD", "orders-5d9")
    assert _settings_for("k8s://https://host", None)["spark.kubernetes.driver.pod.name"] == "orders-5d9"


@pytest.mark.parametrize("master", [None, "local[2]", "yarn", "k8s://https://127.0.0.1:1"])
def test_only_a_standalone_master_is_asked_first(master: str | None) -> None:
    check_answers(master)


def test_a_master_that_does_not_listen_is_named() -> None:
    with pytest.raises(RetryableError, match=r"reaching the Spark master spark://127\.0\.0\.1:1,127\.0\.0\.1:2: .*; start it, or correct"):
        check_answers("spark://127.0.0.1:1,127.0.0.1:2")


@pytest.mark.parametrize(
    ("words", "remedy"),
    [
        ("java.lang.IllegalArgumentException: A secret key must be specified via the spark.authenticate.secret config.", "the same spark"),
        ("All masters are unresponsive! Giving up.", "Spark's words are in"),
    ],
)
def test_a_refused_driver_is_told_what_to_compare(tmp_path: Path, words: str, remedy: str) -> None:
    assert remedy in str(_refused("spark://host:7077", words, tmp_path))


@pytest.mark.parametrize(
    ("master", "archived"), [("spark://127.0.0.1:7077", True), ("local-cluster[2,1,1024]", True), ("spark://10.0.0.5:7077", False)]
)
def test_only_executors_of_this_host_use_its_class_archive(monkeypatch: pytest.MonkeyPatch, master: str, archived: bool) -> None:
    monkeypatch.setattr("pipelines.engine.session.java_option", lambda: "-XX:SharedArchiveFile=/here/spark.jsa")
    assert ("/here/spark.jsa" in _settings_for(master, None)["spark.executor.extraJavaOptions"]) == archived
