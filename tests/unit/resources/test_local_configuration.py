import hashlib
import json
import re
import ssl
import stat
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from resources.local.clickhouse.service import ClickHouse, close_default_user, keep_users, read_first_user, users_file
from resources.local.clickhouse.users import User
from resources.local.errors import LocalServerError
from resources.local.kafka.broker import cluster_id, render_properties
from resources.local.kafka.jars import cache_directory, find_faults, parse_sums, pinned_sums
from resources.local.nats import render_configuration
from resources.local.server import Endpoint, NotReadyError

ENDPOINT = Endpoint(Path("/homes/my home/servers/x"), 21001, {}, "s3cret")


def as_table(properties: str) -> dict[str, str]:
    return dict(line.split("=", 1) for line in properties.splitlines())


def test_kafka_listens_and_advertises_on_loopback_only() -> None:
    table = as_table(render_properties(ENDPOINT, ENDPOINT.directory / "data", 21002))
    assert table["listeners"] == "CLIENT://127.0.0.1:21001,CONTROLLER://127.0.0.1:21002"
    assert table["advertised.listeners"] == "CLIENT://127.0.0.1:21001"
    assert table["controller.quorum.bootstrap.servers"] == "127.0.0.1:21002"
    assert table["log.dirs"] == "/homes/my home/servers/x/data"
    assert table["auto.create.topics.enable"] == "false"


def test_every_listener_of_kafka_wants_the_login() -> None:
    table = as_table(render_properties(ENDPOINT, ENDPOINT.directory / "data", 21002))
    assert table["listener.security.protocol.map"] == "CLIENT:SASL_PLAINTEXT,CONTROLLER:SASL_PLAINTEXT"
    assert table["sasl.enabled.mechanisms"] == "PLAIN"
    for listener in ("client", "controller"):
        login = table[f"listener.name.{listener}.plain.sasl.jaas.config"]
        assert re.findall(r'user_(\w+)="([^"]*)"', login) == [("tallyflow", "s3cret")]


def test_nats_wants_the_login() -> None:
    text = render_configuration(ENDPOINT)
    assert 'authorization {\n  user: tallyflow\n  password: "s3cret"\n}' in text
    assert "s3cret" not in repr(ENDPOINT)


def test_the_one_user_of_a_release_without_passwords_gets_one(tmp_path: Path) -> None:
    users_file(tmp_path).write_text('{"default": {"password": "", "rights": ["all"]}}')
    close_default_user(tmp_path, "s3cret")
    assert read_first_user(tmp_path, "made") == User("default", "s3cret")


@pytest.mark.parametrize("kept", ['{"default": {"password": ""}, "reader": {"password": "x"}}', '{"reader": {"password": ""}}'])
def test_other_users_without_a_password_are_refused(tmp_path: Path, kept: str) -> None:
    users_file(tmp_path).write_text(kept)
    users_file(tmp_path).chmod(0o600)
    close_default_user(tmp_path, "s3cret")
    with pytest.raises(LocalServerError, match=r"needs a password.*tallyflow up --user name:password"):
        read_first_user(tmp_path, "made")
    with pytest.raises(LocalServerError, match="has no password"):
        keep_users(tmp_path, ["ann:"])


def test_kafka_properties_escape_a_backslash_in_a_path() -> None:
    assert as_table(render_properties(ENDPOINT, Path("/a\\b"), 1))["log.dirs"] == "/a\\\\b"


def test_cluster_id_is_read_from_formatted_storage(tmp_path: Path) -> None:
    assert cluster_id(tmp_path) is None
    (tmp_path / "meta.properties").write_text("#\n#Sat Nov 21\ncluster.id=-8Yc1gVSQ=x\nnode.id=1\nversion=1\n")
    assert cluster_id(tmp_path) == "-8Yc1gVSQ=x"


def test_nats_stores_before_it_acknowledges_and_is_on_loopback() -> None:
    text = render_configuration(Endpoint(Path('/a "b"'), 21003, {}, "s3cret"))
    assert "sync_interval: always" in text
    assert 'listen: "127.0.0.1:21003"' in text
    assert 'store_dir: "/a \\"b\\"/data"' in text
    assert re.findall(r"^\s*(http|max_payload|cluster|leafnodes)", text, re.MULTILINE) == []


def test_every_jar_of_the_broker_is_pinned() -> None:
    sums = pinned_sums()
    assert len(sums) == 46
    assert all(re.fullmatch(r"[0-9a-f]{64}", digest) for digest in sums.values())
    assert {"kafka_2.13-4.1.0.jar", "kafka-clients-4.1.0.jar", "log4j-slf4j-impl-2.24.3.jar"} <= sums.keys()


def test_jars_that_are_missing_changed_or_unknown_are_faults(tmp_path: Path) -> None:
    good, bad = hashlib.sha256(b"good").hexdigest(), hashlib.sha256(b"bad").hexdigest()
    sums = parse_sums(f"{good}  a.jar\n{good}  b.jar\n{good}  c.jar\n")
    (tmp_path / "a.jar").write_bytes(b"good")
    (tmp_path / "b.jar").write_bytes(b"bad")
    (tmp_path / "d.jar").write_bytes(b"good")
    assert find_faults(tmp_path, sums) == ["d.jar: not pinned", f"b.jar: sha256 is {bad}, pinned is {good}", "c.jar: missing"]
    (tmp_path / "b.jar").write_bytes(b"good")
    (tmp_path / "d.jar").rename(tmp_path / "c.jar")
    assert find_faults(tmp_path, sums) == []
    assert find_faults(tmp_path / "absent", {"a.jar": good}) == ["a.jar: missing"]


def test_cache_follows_xdg(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    assert cache_directory() == Path("/caches/tallyflow/kafka-4.1.0")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/users/ada")
    assert cache_directory() == Path("/users/ada/.cache/tallyflow/kafka-4.1.0")


def test_clickhouse_users_are_private_and_the_first_is_given(tmp_path: Path) -> None:
    assert read_first_user(tmp_path, "made") == User("default", "made")
    keep_users(tmp_path, ["writer:pa:ss", "reader:secret:select"])
    assert stat.S_IMODE(users_file(tmp_path).stat().st_mode) == 0o600
    kept = json.loads(users_file(tmp_path).read_text())
    assert kept["reader"] == {"password": "secret", "rights": ["select"]}
    assert read_first_user(tmp_path, "made") == User("writer", "pa:ss")


def test_malformed_clickhouse_user_changes_and_shows_nothing(tmp_path: Path) -> None:
    with pytest.raises(LocalServerError, match="name:password") as raised:
        keep_users(tmp_path, ["good:one", "s3cret"])
    assert "s3cret" not in str(raised.value)
    assert not users_file(tmp_path).exists()


def test_probes_of_clickhouse_read_no_certificates_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    endpoint = replace(ENDPOINT, directory=tmp_path, port=1)
    with pytest.raises(NotReadyError, match="asking ClickHouse for its version"):
        ClickHouse().probe(endpoint, timedelta(seconds=1))
    monkeypatch.setattr(ssl, "create_default_context", lambda **_: pytest.fail("certificates are read"))
    with pytest.raises(NotReadyError, match="asking ClickHouse for its version"):
        ClickHouse().probe(endpoint, timedelta(seconds=1))
