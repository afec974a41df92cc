"""Reads a ClickHouse statement from its tokens: its kind, the rights it needs, its output format, the start of an INSERT's data.

In: the bytes of a statement (the data of an INSERT may follow). Out: a `Statement`. Nothing is kept, nothing is executed. Only keywords are
understood; the engine's own parser decides in the end (`Engine.check` asks it before a restricted user's statement runs). Lexical rules:
ClickHouse manual, "Syntax"; the place where INSERT data begins: `ParserInsertQuery` of 26.9, measured.
"""

import enum
import re
from dataclasses import dataclass
from itertools import pairwise, takewhile


class Right(enum.Enum):
    """A kind of statement that a user may run. `SELECT` covers SHOW, DESCRIBE, EXISTS, EXPLAIN and CHECK."""

    SELECT = "select"
    INSERT = "insert"
    CREATE = "create"
    DROP = "drop"
    ALTER = "alter"
    TRUNCATE = "truncate"
    SYSTEM = "system"


ALL_RIGHTS = frozenset(Right)

_RIGHTS: dict[str, frozenset[Right]] = {
    **dict.fromkeys(("SELECT", "FROM", "SHOW", "DESCRIBE", "DESC", "EXISTS", "EXPLAIN", "CHECK"), frozenset({Right.SELECT})),
    **dict.fromkeys(("SET", "USE"), frozenset()),
    **dict.fromkeys(("CREATE", "ATTACH", "UNDROP"), frozenset({Right.CREATE})),
    **dict.fromkeys(("DROP", "DETACH"), frozenset({Right.DROP})),
    **dict.fromkeys(("RENAME", "EXCHANGE"), frozenset({Right.CREATE, Right.DROP})),
    **dict.fromkeys(("ALTER", "OPTIMIZE", "DELETE", "UPDATE"), frozenset({Right.ALTER})),
    **dict.fromkeys(("SYSTEM", "KILL"), frozenset({Right.SYSTEM})),
    "INSERT": frozenset({Right.INSERT}),
    "TRUNCATE": frozenset({Right.TRUNCATE}),
}
# CREATE USER and the like: not table DDL, so only for a user without limits.
_SERVER_OBJECTS = {"USER", "ROLE", "ROW", "POLICY", "QUOTA", "SETTINGS", "NAMED", "FUNCTION", "MASKING", "WORKLOAD", "RESOURCE"}
# Table functions and engines that read files, networks or programs, with the rights of the server's own account. The real server has
# separate grants for them; here only a user without limits may use them.
_FILE_OR_NETWORK = re.compile(
    r"file|filecluster|filesystem|filelog|url\w*|s3\w*|gcs|oss|cosn|azure\w*|hdfs\w*|remote\w*|cluster\w*|mysql|postgresql|materializedpostgresql|"
    r"mongodb|redis|sqlite|jdbc|odbc|executable\w*|python|deltalake\w*|iceberg\w*|hudi\w*|paimon\w*|bigquery|ytsaurus|arrowstream|kafka|"
    r"distributed|backup|datalakecatalog|eval"
)

# Names that the engine's own grants do not cover: the function `file`, programs as a source, disks and databases at a path, text run as
# SQL.
FORBIDDEN = re.compile(r"file|executable\w*|python|disk|sqlite|embeddedrocksdb|filelog|eval|kql")
_NO_CALL_BEHIND = {"INTO", "TABLE", "EXISTS", "VIEW", "DICTIONARY", "DATABASE"}

_TOKEN = re.compile(
    rb"""(?P<skip>\s+|--[^\n]*|\#[\ !][^\n]*|/\*.*?\*/)
    |(?P<string>'(?:[^'\\]|\\.|'')*'|\$(?P<tag>\w*)\$.*?\$(?P=tag)\$)
    |(?P<name>"(?:[^"\\]|\\.|"")*"|`(?:[^`\\]|\\.|``)*`)
    |(?P<word>[A-Za-z_][A-Za-z0-9_$]*)
    |(?P<number>[0-9][A-Za-z0-9_.]*)
    |(?P<mark>.)""",
    re.DOTALL | re.VERBOSE,
)


@dataclass(frozen=True)
class Statement:
    """A statement as its tokens show it.

    `verb` is the deciding keyword in upper case ("" for an empty statement; SELECT also for `WITH ...` and `(SELECT ...)`).
    `data_start` is None unless an INSERT takes data; then `sql[:target_end]` is the INSERT with its columns, `sql[target_end:head_end]`
    its SETTINGS, `format` the input format and `sql[data_start:]` the data. For other statements `format` is the output format named in
    the text, if any.
    """

    verb: str
    rights: frozenset[Right]
    format: str | None = None
    target_end: int = 0
    head_end: int = 0
    data_start: int | None = None
    is_multiple: bool = False
    writes_file: bool = False
    is_temporary: bool = False
    reaches_outside: bool = False
    forbidden: str = ""
    """The first forbidden name: access to files or programs that a server does not have, or has only below its folders."""


@dataclass(frozen=True)
class _Token:
    kind: str
    text: str
    start: int
    end: int
    depth: int

    @property
    def identifier(self) -> str:
        """The name that a word or a quoted name stands for, in lower case; a name with an escape in it is unchanged."""
        return (self.text[1:-1] if self.kind == "name" else self.text if self.kind == "word" else "").lower()


def read_statement(sql: bytes) -> Statement:
    """Read the statement with which `sql` starts. Never raise: an unknown statement needs all rights and reaches the engine unchanged."""
    tokens, depth = [], 0
    for match in _TOKEN.finditer(sql):
        kind = match.lastgroup if match.lastgroup != "tag" else "string"
        if kind is None or kind == "skip":
            continue
        text = match.group().decode("latin-1")
        if kind == "mark" and text in ")]}":
            depth -= 1
        tokens.append(_Token(kind, text, match.start(), match.end(), depth))
        if kind == "mark" and text in "([{":
            depth += 1
        if len(tokens) > 1 and _starts_data(tokens):
            break
    if not tokens:
        return Statement("", frozenset())
    verb = _verb(tokens)
    if verb == "INSERT":
        statement = _read_insert(sql, tokens)
        if statement is not None:
            return statement
    return _read_other(verb, tokens)


def _starts_data(tokens: list[_Token]) -> bool:
    """Return whether the INSERT's data begins after the last token; scanning further would read data as SQL."""
    last, previous = tokens[-1], tokens[-2]
    is_values = last.text.upper() == "VALUES"
    if last.depth or last.kind != "word" or not (is_values or previous.text.upper() == "FORMAT") or _verb(tokens) != "INSERT":
        return False
    return _target_end(tokens) < len(tokens) - (0 if is_values else 1)


def _verb(tokens: list[_Token]) -> str:
    first = next((token for token in tokens if token.text != "("), tokens[0])
    word = first.text.upper() if first.kind == "word" else ""
    if word != "WITH":
        return word
    later = (token.text.upper() for token in tokens if token.kind == "word" and token.depth == first.depth)
    return next((text for text in later if text in ("SELECT", "INSERT")), "WITH")


def _target_end(tokens: list[_Token]) -> int:
    """Return the index of the first token after `INSERT INTO [TABLE] [FUNCTION] name[.name]`.

    So a table may be called `values` or `format`.
    """
    index = next((i for i, token in enumerate(tokens) if token.depth == 0 and token.text.upper() == "INSERT"), 0) + 1
    for optional in ("INTO", "TABLE", "FUNCTION"):
        following = tokens[index + 1].text if index + 1 < len(tokens) else ""
        if index < len(tokens) and tokens[index].text.upper() == optional and following not in (".", "("):
            index += 1
    while index < len(tokens):
        if tokens[index].text == "{":
            index = next((i for i in range(index, len(tokens)) if tokens[i].text == "}"), len(tokens))
        index += 1
        if index >= len(tokens) or tokens[index].text != ".":
            break
        index += 1
    return index


def _read_insert(sql: bytes, tokens: list[_Token]) -> Statement | None:
    """Read the INSERT that takes data; return None for INSERT ... SELECT and INSERT ... FROM INFILE."""
    name, head_end, data_start, target_end = None, len(sql), len(sql), None
    for index in range(_target_end(tokens), len(tokens)):
        token = tokens[index]
        word = token.text.upper() if token.kind == "word" and token.depth == 0 else ""
        if word in ("SELECT", "WITH", "FROM"):
            return None
        if word == "SETTINGS":
            target_end = token.start
        if word == "VALUES":
            name, head_end, data_start = "Values", token.start, token.end
            break
        if word == "FORMAT" and index + 1 < len(tokens):
            name, head_end, data_start = tokens[index + 1].text, token.start, tokens[index + 1].end
            blank = re.compile(rb"[ \t\f]*\r?\n?").match(sql, data_start)
            data_start = blank.end() if blank else data_start
            break
    return Statement(
        "INSERT",
        _RIGHTS["INSERT"],
        name,
        target_end=head_end if target_end is None else target_end,
        head_end=head_end,
        data_start=data_start,
        is_multiple=name != "Values" and sql[data_start : data_start + 1] == b";",
        reaches_outside=_reaches_outside(tokens),
        forbidden=_forbidden(tokens),
    )


def _read_other(verb: str, tokens: list[_Token]) -> Statement:
    words = [token.text.upper() if token.kind == "word" else "" for token in tokens]
    end = next((i for i, token in enumerate(tokens) if token.text == ";" and token.depth == 0), len(tokens))
    pairs = list(pairwise(words))
    rights = _RIGHTS.get(verb, ALL_RIGHTS)
    if ("PARALLEL", "WITH") in pairs or (verb in ("CREATE", "DROP", "ALTER", "ATTACH") and _SERVER_OBJECTS & set(words[1:4])):
        rights = ALL_RIGHTS
    if "SELECT" in words and verb not in ("EXPLAIN", "SHOW"):
        rights = rights | {Right.SELECT}
    return Statement(
        verb,
        rights,
        format=_output_format(tokens[:end]),
        is_multiple=any(token.text != ";" for token in tokens[end:]),
        writes_file=("INTO", "OUTFILE") in pairs or ("FROM", "INFILE") in pairs,
        is_temporary=verb in ("CREATE", "ATTACH")
        and bool({"TEMPORARY", "TEMP"} & set(takewhile(lambda word: word not in ("TABLE", "VIEW"), words))),
        reaches_outside=_reaches_outside(tokens),
        forbidden=_forbidden(tokens),
    )


def _output_format(tokens: list[_Token]) -> str | None:
    """Return the name after the last FORMAT, if the statement ends there or continues with SETTINGS."""
    for index in range(len(tokens) - 1, 0, -1):
        word, name = tokens[index - 1], tokens[index]
        if word.text.upper() == "FORMAT" and word.kind == name.kind == "word" and word.depth == 0:
            rest = tokens[index + 1 :]
            return name.text if not rest or rest[0].text.upper() == "SETTINGS" else None
    return None


def _reaches_outside(tokens: list[_Token]) -> bool:
    for previous, token, following in zip([None, *tokens], tokens, [*tokens[1:], None], strict=False):
        before = previous.text.upper() if previous else ""
        opens = following is not None and following.text == "("
        if (opens or before == "=") and _FILE_OR_NETWORK.fullmatch(token.identifier):
            return True
        # The embedded engine takes a path as a table of `default`: FROM '/etc/passwd', FROM `/etc/passwd`.
        if token.kind == "name" and ("/" in token.text or "\\" in token.text):
            return True
        if token.kind == "string" and before in ("FROM", "JOIN", "INTO", "TABLE", "DESCRIBE", "DESC"):
            return True
    return False


def _forbidden(tokens: list[_Token]) -> str:
    """Return the first forbidden name, as it is written; empty if there is none."""
    takes_functions = False
    for previous, token, following in zip([None, *tokens], tokens, [*tokens[1:], None], strict=False):
        before = previous.text.upper() if previous else ""
        is_called = following is not None and following.text == "("
        # INSERT INTO file (a), but DESCRIBE TABLE file('x').
        is_table = before == "." or (before in _NO_CALL_BEHIND and tokens[0].text.upper() not in ("DESCRIBE", "DESC"))
        has_escape = token.kind == "name" and "\\" in token.text
        if is_called and not is_table and (has_escape or FORBIDDEN.fullmatch(token.identifier)):
            return token.text
        # arrayMap(file, x), * APPLY file, APPLY(file): passed on by its name.
        is_handed_on = before == "APPLY" or (before == "(" and takes_functions)
        if is_handed_on and (has_escape or token.identifier == "file"):
            return token.text
        if token.text == "(":
            takes_functions = previous is not None and previous.identifier.startswith(("apply", "array", "map"))
    return ""
