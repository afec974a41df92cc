import pytest

from resources.local.clickhouse.statement import ALL_RIGHTS, Right, read_statement


@pytest.mark.parametrize(
    ("sql", "verb", "rights"),
    [
        ("SELECT 1", "SELECT", {Right.SELECT}),
        ("  -- INSERT\n /* DROP */ #! x\n select 1", "SELECT", {Right.SELECT}),
        ("(SELECT 1) UNION ALL (SELECT 2)", "SELECT", {Right.SELECT}),
        ("WITH x AS (SELECT 1) SELECT * FROM x", "SELECT", {Right.SELECT}),
        ("WITH x AS (SELECT 1) INSERT INTO t SELECT * FROM x", "INSERT", {Right.INSERT, Right.SELECT}),
        ("EXPLAIN SELECT 1", "EXPLAIN", {Right.SELECT}),
        ("SHOW CREATE TABLE t", "SHOW", {Right.SELECT}),
        ("INSERT INTO t SELECT 1", "INSERT", {Right.INSERT, Right.SELECT}),
        ("INSERT INTO t VALUES (1)", "INSERT", {Right.INSERT}),
        ("CREATE TABLE t (a Int8) ENGINE = Memory", "CREATE", {Right.CREATE}),
        ("CREATE MATERIALIZED VIEW v TO t AS SELECT 1", "CREATE", {Right.CREATE, Right.SELECT}),
        ("CREATE USER x", "CREATE", ALL_RIGHTS),
        ("DROP TABLE t", "DROP", {Right.DROP}),
        ("DROP TABLE a PARALLEL WITH DROP TABLE b", "DROP", ALL_RIGHTS),
        ("ALTER TABLE t ADD COLUMN b Int8", "ALTER", {Right.ALTER}),
        ("DELETE FROM t WHERE a IN (SELECT 1)", "DELETE", {Right.ALTER, Right.SELECT}),
        ("TRUNCATE TABLE t", "TRUNCATE", {Right.TRUNCATE}),
        ("RENAME TABLE a TO b", "RENAME", {Right.CREATE, Right.DROP}),
        ("SYSTEM FLUSH LOGS", "SYSTEM", {Right.SYSTEM}),
        ("SET max_threads = 1", "SET", set()),
        ("GRANT SELECT ON t TO x", "GRANT", ALL_RIGHTS),
        ("nonsense", "NONSENSE", ALL_RIGHTS),
    ],
)
def test_verb_and_rights(sql: str, verb: str, rights: set[Right]) -> None:
    statement = read_statement(sql.encode())
    assert (statement.verb, statement.rights) == (verb, frozenset(rights))


@pytest.mark.parametrize(
    ("sql", "target", "clauses", "name", "data"),
    [
        (b"INSERT INTO t FORMAT CSV\n1,a\n", b"INSERT INTO t ", b"", "CSV", b"1,a\n"),
        (b"INSERT INTO t FORMAT CSV \t\r\n\n1", b"INSERT INTO t ", b"", "CSV", b"\n1"),
        (
            b"insert into t (a, b) settings x = 'FORMAT CSV' format Native\xff\x00",
            b"insert into t (a, b) ",
            b"settings x = 'FORMAT CSV' ",
            "Native",
            b"\xff\x00",
        ),
        (b"INSERT INTO d.t VALUES (1, 'SELECT');", b"INSERT INTO d.t ", b"", "Values", b" (1, 'SELECT');"),
        (b"INSERT INTO values VALUES (1)", b"INSERT INTO values ", b"", "Values", b" (1)"),
        (b"INSERT INTO format FORMAT CSV\n1", b"INSERT INTO format ", b"", "CSV", b"1"),
        (b"INSERT INTO `FORMAT CSV` FORMAT TSV\n1", b"INSERT INTO `FORMAT CSV` ", b"", "TSV", b"1"),
        (b"INSERT INTO {t:Identifier} FORMAT CSV\n1", b"INSERT INTO {t:Identifier} ", b"", "CSV", b"1"),
        (b"INSERT INTO TABLE t (format, values) FORMAT CSV\n1", b"INSERT INTO TABLE t (format, values) ", b"", "CSV", b"1"),
        (b"INSERT INTO FUNCTION null('a Int8') FORMAT CSV\n1", b"INSERT INTO FUNCTION null('a Int8') ", b"", "CSV", b"1"),
        (b"/* VALUES */ INSERT INTO t FORMAT CSV\n-- SELECT", b"/* VALUES */ INSERT INTO t ", b"", "CSV", b"-- SELECT"),
        (b"INSERT INTO t (a, b)", b"INSERT INTO t (a, b)", b"", None, b""),
    ],
)
def test_insert_is_cut_where_its_data_begins(sql: bytes, target: bytes, clauses: bytes, name: str | None, data: bytes) -> None:
    statement = read_statement(sql)
    assert statement.data_start is not None
    found = sql[: statement.target_end], sql[statement.target_end : statement.head_end], statement.format, sql[statement.data_start :]
    assert found == (target, clauses, name, data)


@pytest.mark.parametrize(
    ("sql", "name"),
    [
        ("SELECT 1", None),
        ("SELECT 1 FORMAT JSON", "JSON"),
        ("SELECT 1 format Native SETTINGS max_threads = 1", "Native"),
        ("SELECT 1 FORMAT CSV;  -- end", "CSV"),
        ("SELECT 'FORMAT CSV'", None),
        ("SELECT * FROM (SELECT 1 FORMAT CSV)", None),
        ("SELECT format FROM t", None),
        ("SHOW TABLES FORMAT TSV", "TSV"),
    ],
)
def test_output_format_is_the_one_named_at_the_end(sql: str, name: str | None) -> None:
    assert read_statement(sql.encode()).format == name


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT 1; DROP TABLE t", True),
        ("SELECT 1;", False),
        ("SELECT 1; -- only a comment", False),
        ("SELECT ';'; ", False),
        ("SELECT $tag$;$tag$", False),
        ("INSERT INTO t FORMAT CSV;1", True),
        ("INSERT INTO t VALUES (1); (2)", False),
    ],
)
def test_several_statements_are_noticed(sql: str, expected: bool) -> None:
    assert read_statement(sql.encode()).is_multiple is expected


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT * FROM numbers(3)", False),
        ("SELECT file FROM t", False),
        ("SELECT * FROM file('/etc/passwd')", True),
        ("SELECT * FROM S3Cluster ('x')", True),
        ("INSERT INTO FUNCTION url('http://x') VALUES (1)", True),
        ("CREATE TABLE t (a Int8) ENGINE = URL('http://x')", True),
        ("CREATE TABLE t (a Int8) ENGINE = File", True),
        ("CREATE TABLE t (a Int8) ENGINE = MergeTree ORDER BY a", False),
        ("SELECT * FROM `/etc/passwd`", True),
        ("SELECT * FROM '/etc/passwd'", True),
        ("SELECT '/etc/passwd'", False),
    ],
)
def test_statements_that_reach_files_or_networks_are_noticed(sql: str, expected: bool) -> None:
    assert read_statement(sql.encode()).reaches_outside is expected


def test_files_in_statements_and_temporary_tables_are_noticed() -> None:
    assert read_statement(b"SELECT 1 INTO OUTFILE 'x'").writes_file
    assert read_statement(b"INSERT INTO t FROM INFILE 'x' FORMAT CSV").writes_file
    assert not read_statement(b"SELECT 'INTO OUTFILE'").writes_file
    assert read_statement(b"CREATE TEMPORARY TABLE x (a Int8)").is_temporary
    assert not read_statement(b"CREATE TABLE temporary (a Int8)").is_temporary
