import json
import os
from pathlib import Path

import pytest

from resources.local.clickhouse.statement import ALL_RIGHTS, Right, read_statement
from resources.local.clickhouse.users import User, UsersError, UserTable, parse_user, read_users


def write(path: Path, text: str, mode: int = 0o600) -> Path:
    path.write_text(text)
    path.chmod(mode)
    return path


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ann:pw", User("ann", "pw")),
        ("ann:pw:all", User("ann", "pw")),
        ("ann:pw:insert,select", User("ann", "pw", frozenset({Right.INSERT, Right.SELECT}))),
        ("ann:p:w", User("ann", "p:w")),
        ("ann:p:w:insert", User("ann", "p:w", frozenset({Right.INSERT}))),
    ],
)
def test_user_option(text: str, expected: User) -> None:
    assert parse_user(text) == expected


@pytest.mark.parametrize("text", ["ann", ":pw", "", "ann:", "ann::all"])
def test_malformed_user_option_is_refused(text: str) -> None:
    with pytest.raises(UsersError):
        parse_user(text)


def test_users_file_holds_json_or_lines(tmp_path: Path) -> None:
    document = {"ann": {"password": "a:b", "rights": ["insert"]}, "bob": {"password": "b"}}
    expected = {"ann": User("ann", "a:b", frozenset({Right.INSERT})), "bob": User("bob", "b", ALL_RIGHTS)}
    assert read_users(write(tmp_path / "users.json", json.dumps(document))) == expected
    assert read_users(write(tmp_path / "users", "ann:a:b:insert\nbob:b\n")) == expected


@pytest.mark.parametrize(
    "text",
    [
        '{"ann": {}}',
        '{"ann": {"password": "x", "rights": ["fly"]}}',
        '{"ann": {"password": 1}}',
        '{"ann": {"password": ""}}',
        "ann:",
        '{"ann"',
        "ann",
        '{"ann": {"password": "x", "rights": "all"}}',
    ],
)
def test_unusable_users_file_is_refused_without_its_contents(tmp_path: Path, text: str) -> None:
    with pytest.raises(UsersError) as caught:
        read_users(write(tmp_path / "users.json", text))
    assert "users.json" in str(caught.value)


def test_users_file_that_others_can_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsersError, match="chmod 600"):
        read_users(write(tmp_path / "users.json", "{}", mode=0o640))


def test_password_never_shows_in_the_repr() -> None:
    assert "secret" not in repr(parse_user("ann:secret"))


def test_nobody_gets_in_without_users_or_without_a_password() -> None:
    with pytest.raises(UsersError, match="--users-file"):
        UserTable([])
    assert UserTable([parse_user("ann:x")]).authenticate("default", "") is None
    assert UserTable([parse_user("ann:x")]).authenticate("ann", "") is None


def test_a_changed_file_is_reread_a_broken_one_keeps_the_users(tmp_path: Path) -> None:
    path = write(tmp_path / "users.json", '{"ann": {"password": "x"}}')
    table = UserTable([parse_user("root:y")], path)
    assert table.authenticate("ann", "x") is not None
    assert table.authenticate("ann", "wrong") is None
    write(path, '{"ann": {"password": "x", "rights": ["select"]}}')
    ann = table.authenticate("ann", "x")
    assert ann is not None
    assert ann.rights == {Right.SELECT}
    write(path, "{")
    os.utime(path, ns=(1, 1))
    assert table.authenticate("ann", "x") == ann
    write(path, "{}")
    assert table.authenticate("ann", "x") is None
    assert table.authenticate("root", "y") is not None


def test_refusal_names_the_missing_right() -> None:
    reader = User("ann", "", frozenset({Right.SELECT}))
    assert reader.refusal(read_statement(b"SELECT 1")) is None
    assert "INSERT" in str(reader.refusal(read_statement(b"INSERT INTO t SELECT 1")))
    assert "FILE" in str(reader.refusal(read_statement(b"SELECT * FROM file('x')")))
    assert User("root", "").refusal(read_statement(b"DROP TABLE t")) is None
