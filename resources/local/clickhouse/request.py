"""From an HTTP request to its work: statement, data, settings, output format; refused here if the user has no right to it.

In: a `Call` (parameters, headers, the body as received). Out: a `Work`, or an `EngineError` in the words of a server. Nothing is kept.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from email import message_from_bytes, policy
from itertools import chain
from typing import IO

from starlette.datastructures import Headers

from resources.local.clickhouse.engine import NOT_IMPLEMENTED, Engine, Options, server_error
from resources.local.clickhouse.formats import UnknownEncodingError, decoded
from resources.local.clickhouse.sessions import SessionTable
from resources.local.clickhouse.statement import FORBIDDEN, Right, Statement, read_statement
from resources.local.clickhouse.users import ACCESS_DENIED, User

# The engine's max_query_size: the head of an INSERT must be within it, the data may follow.
_MAX_HEAD_BYTES = 256 << 10
_MAX_QUERY_BYTES = 64 << 20
_PIECE_BYTES = 1 << 20
# Parameters of the interface itself; every other one is a setting of the statement (HTTPHandler.cpp of the server).
_RESERVED = {
    *("query", "database", "default_format", "query_id", "session_id", "session_timeout", "session_check", "user", "password", "role"),
    *("wait_end_of_query", "buffer_size", "compress", "decompress", "quota_key", "stacktrace", "client_protocol_version", "close_session"),
}
_READS = frozenset({Right.SELECT})
_LITERALLY = {"input_format_values_interpret_expressions": "0", "input_format_values_deduce_templates_of_expressions": "0"}
_CALLS = re.compile(rb"\bfile\b|[`\"]")


@dataclass
class Call:
    """One request: its user, its parameters, and its whole body as received (encoded, at position 0)."""

    method: str
    headers: Headers
    parameters: dict[str, str]
    query_id: str
    user: User
    body: IO[bytes]

    @property
    def session_timeout(self) -> timedelta:
        text = self.parameters.get("session_timeout", "60")
        return timedelta(seconds=min(int(text), 3600)) if text.isdecimal() else timedelta(seconds=60)


@dataclass(frozen=True)
class Work:
    """The work of a request. `data`: the decoded bytes of an INSERT, else None.

    For an INSERT `sql` is the statement with its columns, `clauses` its SETTINGS.
    """

    statement: Statement
    sql: str
    clauses: str
    data: Iterator[bytes] | None
    output: str
    options: Options

    @property
    def is_read(self) -> bool:
        return self.statement.rights <= _READS


def plan(call: Call, engine: Engine, sessions: SessionTable) -> Work:
    """Return the work of a request. Raise EngineError, and ValueError for a body that cannot be decoded."""
    pieces = _body(call, engine)
    statement, sql, data = _split(call.parameters.get("query", "").encode("utf-8", "surrogateescape"), pieces, engine)
    data, literally = _without_functions(statement, data)
    head = sql[: statement.target_end] if data is not None else sql
    clauses, options = _text(sql[len(head) :], engine), _options(call, sessions, literally)
    work = Work(statement, _text(head, engine), clauses, data, _output(call, statement), options)
    _check(call, work, engine)
    return work


def _body(call: Call, engine: Engine) -> Iterator[bytes]:
    for name in ("compress", "decompress"):
        if call.parameters.get(name, "0") not in ("0", ""):
            text = f"{name}=1 (ClickHouse's own block compression) is not supported here; use Content-Encoding or Accept-Encoding"
            raise server_error(NOT_IMPLEMENTED, text, "NOT_IMPLEMENTED", engine.version)
    raw = iter(lambda: call.body.read(_PIECE_BYTES), b"")
    try:
        pieces = decoded(raw, call.headers.get("content-encoding", "").strip().lower())
    except UnknownEncodingError as error:
        raise server_error(89, str(error), "UNKNOWN_COMPRESSION_METHOD", engine.version) from error
    if not call.headers.get("content-type", "").startswith("multipart/form-data"):
        return pieces
    call.parameters |= _form(call.headers["content-type"], b"".join(_bounded(pieces, engine)), engine)
    return iter(())


def _form(content_type: str, body: bytes, engine: Engine) -> dict[str, str]:
    """Return the fields of a form; clickhouse-connect sends long query parameters in a form."""
    message = message_from_bytes(b"Content-Type: " + content_type.encode() + b"\r\n\r\n" + body, policy=policy.HTTP)
    fields = {}
    for part in message.iter_parts():
        payload = part.get_payload(decode=True)
        if part.get_filename() or not isinstance(payload, bytes):
            raise server_error(NOT_IMPLEMENTED, "External data is not supported here", "NOT_IMPLEMENTED", engine.version)
        fields[str(part.get_param("name", header="content-disposition"))] = payload.decode()
    return fields


def _split(query: bytes, pieces: Iterator[bytes], engine: Engine) -> tuple[Statement, bytes, Iterator[bytes] | None]:
    """Return the statement, its text, and its data if it takes any; a body continues the `query` parameter, as on a server."""
    statement = read_statement(query)
    if statement.data_start is not None and statement.format:
        return _with_data(statement, query, pieces)
    text = query + b"\n" if query else b""
    for piece in pieces:
        text += piece
        if len(text) >= _MAX_HEAD_BYTES:
            break
    statement = read_statement(text)
    if statement.data_start is not None and statement.format:
        return _with_data(statement, text, pieces)
    text = b"".join(_bounded(chain([text], pieces), engine))
    statement = read_statement(text)
    if statement.data_start is not None:
        return _with_data(statement, text, iter(()))
    return statement, text, None


def _with_data(statement: Statement, text: bytes, pieces: Iterator[bytes]) -> tuple[Statement, bytes, Iterator[bytes]]:
    inline = text[statement.data_start :]
    return statement, text[: statement.head_end], chain([inline] if inline else [], pieces)


def _bounded(pieces: Iterator[bytes], engine: Engine) -> Iterator[bytes]:
    size = 0
    for piece in pieces:
        size += len(piece)
        if size > _MAX_QUERY_BYTES:
            raise server_error(229, f"A statement must not be larger than {_MAX_QUERY_BYTES} bytes", "QUERY_IS_TOO_LARGE", engine.version)
        yield piece


def _text(sql: bytes, engine: Engine) -> str:
    try:
        return sql.decode()
    except UnicodeDecodeError as error:
        raise server_error(62, "Syntax error: the statement is not UTF-8", "SYNTAX_ERROR", engine.version) from error


def _output(call: Call, statement: Statement) -> str:
    asked = call.parameters.get("default_format") or call.headers.get("x-clickhouse-format") or "TabSeparated"
    return asked if statement.data_start is not None else statement.format or asked


def _without_functions(statement: Statement, data: Iterator[bytes] | None) -> tuple[Iterator[bytes] | None, dict[str, str]]:
    """Return the data, and settings with which VALUES are read as literals if their expressions could call forbidden names.

    Expressions are read from one piece at most, and only from a piece without such a name.
    """
    if data is None or statement.format != "Values":
        return data, {}
    first, second = next(data, b""), next(data, b"")
    whole = chain([first, second] if second else [first], data)
    if not second and not _CALLS.search(first):
        return whole, {}
    return whole, _LITERALLY


def _options(call: Call, sessions: SessionTable, literally: dict[str, str]) -> Options:
    parameters = {name: value for name, value in call.parameters.items() if name not in _RESERVED}
    session = call.parameters.get("session_id", "")
    return Options(
        settings={name: value for name, value in parameters.items() if not name.startswith("param_")} | literally,
        parameters={name.removeprefix("param_"): value for name, value in parameters.items() if name.startswith("param_")},
        database=call.parameters.get("database") or call.headers.get("x-clickhouse-database") or "",
        is_read_only=call.method != "POST",
        setup=sessions.statements(call.user.name, session, call.session_timeout) if session else (),
        tag=call.query_id,
    )


def _check(call: Call, work: Work, engine: Engine) -> None:
    statement, version = work.statement, engine.version
    if not work.sql.strip():
        raise server_error(62, "Syntax error: Empty query", "SYNTAX_ERROR", version)
    if statement.is_multiple:
        raise server_error(62, "Syntax error (Multi-statements are not allowed)", "SYNTAX_ERROR", version)
    if statement.writes_file:
        raise server_error(358, "INTO OUTFILE and FROM INFILE are not allowed", "INTO_OUTFILE_NOT_ALLOWED", version)
    if statement.is_temporary:
        raise server_error(NOT_IMPLEMENTED, "Temporary tables are not supported here", "NOT_IMPLEMENTED", version)
    # The engine's `readonly` lets INSERT INTO FUNCTION pass.
    if call.method != "POST" and not work.is_read:
        text = f"Cannot execute query in readonly mode. For queries over HTTP, method {call.method} implies readonly; use POST"
        raise server_error(164, text, "READONLY", version)
    names = [value for value in work.options.parameters.values() if "Identifier" in work.sql and FORBIDDEN.fullmatch(value.lower())]
    # Settings in the statement itself would override those of the request.
    names += [name for name, value in _LITERALLY.items() if work.options.settings.get(name) == value and name in work.clauses]
    if found := statement.forbidden or "".join(names[:1]):
        text = f"{found} is not supported here: it could reach files and programs of the account that runs this server"
        raise server_error(NOT_IMPLEMENTED, text, "NOT_IMPLEMENTED", version)
    if call.user.is_unlimited:
        return
    refusal = call.user.refusal(statement)
    # A parameter can name things that the text does not: FROM {t:Identifier} with a path.
    if refusal is None and "Identifier" in work.sql and any("/" in value for value in work.options.parameters.values()):
        refusal = f"{call.user.name}: Not enough privileges to read files"
    if refusal is None and work.data is None and statement.verb not in ("SET", "USE"):
        query_class, count = engine.check(work.sql)
        if count > 1 or (work.is_read and query_class not in ("READ_ONLY", "UNKNOWN")):
            refusal = f"{call.user.name}: Not enough privileges"
    if refusal is not None:
        raise server_error(ACCESS_DENIED, refusal, "ACCESS_DENIED", version)
