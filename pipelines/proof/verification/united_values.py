"""The expected values of columns whose values are each of one of several types, as SQL for DuckDB: Variant, Dynamic, Geometry.

In the plain form a union has a list for each of its types, of which one holds the value; a geometry is the name of its shape and its
coordinates with the brackets of a MultiPolygon. Readings are given as pairs: SQL of the value, and of whether it fits.
"""

from collections.abc import Callable

from pipelines.proof.verification.plain_form import MISSING_BRACKETS
from pipelines.types.columns import SHAPES, ColumnType
from pipelines.types.unions import is_of_texts, members_of, most_exact_digits

Pair = tuple[str, str]


def union_reading(kind: ColumnType, document: str, depth: int, read: Callable[[ColumnType, int], Pair]) -> Pair:
    """Return the reading of a JSON document as the first type of a union that takes it. `read` reads it as a type, at a depth."""
    chosen = f"m{depth}"
    cases, lists = [], []
    for number, member in enumerate(members_of(kind), 1):
        value, fits = read(member, depth + 1)
        cases.append(f"WHEN {_is_exact(member, document)} AND {fits} THEN {number}")
        lists.append(f"'{number}': CASE WHEN {chosen} = {number} THEN [{value}] ELSE [] END")
    first = f"CASE {' '.join(cases)} END"
    value = f"list_transform([{first}], lambda {chosen}: CASE WHEN {chosen} IS NOT NULL THEN {{{', '.join(lists)}}} END)[1]"
    return value, f"(({first}) IS NOT NULL)"


def _is_exact(member: ColumnType, document: str) -> str:
    """Return SQL of whether the document has no text, unless the type does, and no whole number that is too long for the type's floats."""
    if is_of_texts(member):
        return "true"
    has_no_text = f"NOT contains(({document})::VARCHAR, '\"')"
    digits = most_exact_digits(member)
    if digits is None:
        return has_no_text
    return f"{has_no_text} AND NOT regexp_matches(({document})::VARCHAR, '(^|[\\[,])-?[0-9]{{{digits + 1},}}($|[\\],])')"


def geometry_reading(text: str, read: Callable[[ColumnType, str], Pair]) -> Pair:
    """Return the reading of the text of a GeoJSON geometry. `read` reads the text of an array as a type."""
    document = f"try_cast({text} AS JSON)"
    shape, coordinates = f"json_extract_string({document}, '$.type')", f"json_extract({document}, '$.coordinates')::VARCHAR"
    cases = (f"WHEN '{name}' THEN '{'[' * count}' || {coordinates} || '{']' * count}'" for name, count in MISSING_BRACKETS.items())
    whole = f"(CASE {shape} {' '.join(cases)} END)"
    value, fits = read(SHAPES["MultiPolygon"], whole)
    keys = f"json_keys({document})"
    polygons = f"json_extract(try_cast({whole} AS JSON), '$[*]')"
    has_rings = f"len(list_filter({polygons}, lambda polygon: json_array_length(polygon) = 0)) = 0"
    is_of_arrays = f"json_type({document}, '$.coordinates') = 'ARRAY'"
    conditions = f"list_unique({keys}) = len({keys}) AND json_type({document}, '$.type') = 'VARCHAR' AND {is_of_arrays} AND {has_rings}"
    geometry = f"CASE WHEN {whole} IS NOT NULL THEN {{'1': encode({shape}), '2': {value}}} END"
    return geometry, f"coalesce({conditions} AND {fits}, false)"
