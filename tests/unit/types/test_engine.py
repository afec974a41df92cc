"""The engine of expressions: one prepared statement for many columns answers as a statement of its own does."""

import os
from collections.abc import Iterator

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.types import engine as engine_module
from pipelines.types.duckdb import open_engine, shared_connection
from pipelines.types.engine import Database, Engine

LENGTH = "SELECT v, octet_length(v::BLOB) FROM _tf_values"
_ENGINE = open_engine()


@pytest.fixture
def engine() -> Iterator[Engine]:
    with open_engine() as opened:
        yield opened


def test_each_answer_is_about_the_column_that_was_given(engine: Engine) -> None:
    columns = [pa.array(["a", None]), pa.array([], pa.string()), pa.array(["b"]), pa.array([b"\xff", b"c"]), pa.array(["d"])]
    assert [engine.ask(LENGTH, column)[0].to_pylist() for column in columns] == [["a", None], [], ["b"], [b"\xff", b"c"], ["d"]]


def test_each_select_reads_all_columns_of_its_rows(engine: Engine) -> None:
    sql = 'SELECT a + "b.c", "b.c" FROM _tf_values'
    tables = [pa.table({"a": [1, 2], "b.c": [10, 20]}), pa.table({"a": [3], "b.c": [0]}), pa.table({"a": [0.5], "b.c": [1]})]
    found = [[column.to_pylist() for column in engine.select(sql, table)] for table in tables]
    assert found == [[[11, 22], [10, 20]], [[3], [0]], [[1.5], [1]]]


def test_a_select_is_prepared_once_per_schema(engine: Engine) -> None:
    prepared = "SELECT count(*) FROM duckdb_prepared_statements()"
    ((before,),) = engine.connection.execute(prepared).fetchall()
    for rows in (1, 40, 40):
        engine.select("SELECT a + 1 FROM _tf_values", pa.table({"a": list(range(rows))}))
        engine.select("SELECT a + 1 FROM _tf_values", pa.table({"a": [0.5] * rows, "b": ["x"] * rows}))
    assert engine.connection.execute(prepared).fetchall() == [(before + 2,)]


def test_a_question_about_another_type_is_another_statement(engine: Engine) -> None:
    kinds = [engine.ask("SELECT typeof(v) FROM _tf_values", column)[0].to_pylist() for column in (pa.array(["a"]), pa.array([1]))]
    assert kinds == [["VARCHAR"], ["BIGINT"]]


def test_an_error_leaves_the_engine_as_it_was(engine: Engine) -> None:
    sql = "SELECT v::INTEGER FROM _tf_values"
    assert engine.ask(sql, pa.array(["1"]))[0].to_pylist() == [1]
    with pytest.raises(duckdb.ConversionException):
        engine.ask(sql, pa.array(["x"]))
    assert engine.ask(sql, pa.array(["2", "3"]))[0].to_pylist() == [2, 3]


def database_of(engine: Engine) -> Database:
    """Its database, without a claim to it, as `engine.connection` makes."""
    return engine._opened


def is_open(database: Database) -> bool:
    try:
        return bool(database.connection.execute("SELECT 1").fetchall())
    except duckdb.ConnectionException:
        return False


def test_the_next_engine_has_what_a_closed_one_prepared(engine: Engine) -> None:
    engine.ask(LENGTH, pa.array(["a"]))
    database, prepared = database_of(engine), len(database_of(engine).statements)
    engine.close()
    with open_engine() as following:
        assert database_of(following) is database
        assert following.ask(LENGTH, pa.array(["bc", None]))[1].to_pylist() == [2, None]
        assert len(database.statements) == prepared


def test_two_open_engines_have_a_database_each(engine: Engine) -> None:
    with open_engine() as other:
        assert database_of(engine).connection is not database_of(other).connection


def test_a_closed_engine_refuses_and_its_database_has_one_user(engine: Engine) -> None:
    engine.close()
    engine.close()
    with pytest.raises(duckdb.ConnectionException, match="closed"):
        engine.ask(LENGTH, pa.array(["a"]))
    with open_engine() as one, open_engine() as other:
        assert database_of(one) is not database_of(other)


def test_what_somebody_may_have_left_behind_is_nobody_elses(engine: Engine) -> None:
    database = database_of(engine)
    engine.connection.execute("CREATE TABLE left_behind (n INTEGER)")
    engine.close()
    assert not is_open(database)


def test_a_discarded_database_serves_nobody(engine: Engine) -> None:
    database = database_of(engine)
    engine.discard()
    assert not is_open(database)
    with open_engine() as following:
        assert database_of(following) is not database


def test_behind_an_error_a_database_is_discarded() -> None:
    with pytest.raises(duckdb.ConversionException), open_engine() as failing:
        database = database_of(failing)
        failing.ask("SELECT v::INTEGER FROM _tf_values", pa.array(["x"]))
    assert not is_open(database)


class Ended:
    """A connection that knows its statements and meets a fault of DuckDB's own in each."""

    def __getattr__(self, name: str) -> object:
        return lambda *_: self

    def to_arrow_table(self) -> pa.Table:
        raise duckdb.InternalException("INTERNAL Error: a fault")

    def close(self) -> None:
        self.is_closed = True


def test_behind_a_fault_of_duckdbs_own_nothing_is_given_back() -> None:
    connection, given = Ended(), list[Database]()
    engine = Engine(Database(connection), given.append)  # type: ignore[arg-type]
    with pytest.raises(duckdb.InternalException):
        engine.ask(LENGTH, pa.array(["a"]))
    engine.close()
    assert (connection.is_closed, given) == (True, [])


def test_only_a_few_databases_are_kept() -> None:
    engines = [open_engine() for _ in range(8)]
    databases = [database_of(engine) for engine in engines]
    for engine in engines:
        engine.close()
    assert sum(map(is_open, databases)) == 4


def test_a_database_with_many_statements_is_not_kept(engine: Engine) -> None:
    database = database_of(engine)
    for number in range(500):
        engine.ask(f"SELECT v + {number} FROM _tf_values", pa.array([1]))
    engine.close()
    assert not is_open(database)


def test_a_shared_connection_is_as_one_of_an_engine(engine: Engine) -> None:
    sql = "SELECT name, value FROM duckdb_settings() ORDER BY name"
    with shared_connection() as connection:
        assert connection.execute(sql).fetchall() == engine.connection.execute(sql).fetchall()
        with pytest.raises(duckdb.InvalidInputException, match="configuration"):
            connection.execute("SET threads = 2")


def test_what_a_shared_connection_registers_is_its_own() -> None:
    with shared_connection() as one, shared_connection() as other:
        one.register("_tf_fields", pa.table({"a": [1]}))
        with pytest.raises(duckdb.CatalogException):
            other.execute("FROM _tf_fields")


def is_marked() -> bool:
    """Whether the engine of a shared connection has the table of the fixture `marked`."""
    with shared_connection() as connection:
        return connection.execute("SELECT 1 FROM duckdb_tables() WHERE table_name = 'marked'").fetchall() == [(1,)]


@pytest.fixture
def marked() -> Iterator[None]:
    with shared_connection() as connection:
        connection.execute("CREATE TABLE marked (n INTEGER)")
    yield
    with shared_connection() as connection:
        connection.execute("DROP TABLE IF EXISTS marked")


@pytest.mark.usefixtures("marked")
def test_a_forked_process_has_an_engine_of_its_own() -> None:
    assert is_marked()
    child = os.fork()
    if child == 0:
        code = 3
        try:
            code = int(is_marked())
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.usefixtures("marked")
def test_behind_a_fault_of_duckdbs_own_the_engine_is_another() -> None:
    with pytest.raises(duckdb.FatalException), shared_connection():
        raise duckdb.FatalException("FATAL Error: a fault")
    assert not is_marked()


def test_a_field_may_be_named_as_the_source_is(engine: Engine) -> None:
    (found,) = engine.ask("SELECT json_extract_string(v, '$.\"a_tf_values\"') FROM _tf_values", pa.array(['{"a_tf_values":"x"}']))
    assert found.to_pylist() == ["x"]


def test_a_column_that_was_answered_about_is_let_go(engine: Engine) -> None:
    before = pa.total_allocated_bytes()
    engine.ask("SELECT length(v) FROM _tf_values", pa.array(["x" * 1000] * 1000))
    assert pa.total_allocated_bytes() - before < 100_000


@settings(max_examples=40, deadline=None)
@given(texts=st.lists(st.none() | st.text(max_size=20), max_size=50))
def test_large_columns_are_answered_as_small_ones_are(texts: list[str | None]) -> None:
    column, sql = pa.array(texts, pa.string()), "SELECT v, md5(v), length(v), v IS NULL FROM _tf_values"
    prepared = _ENGINE.ask(sql, column)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine_module, "_PREPARED_BYTES", -1)
        assert _ENGINE.ask(sql, column) == prepared
