"""GlassFlow's own cases: its filter_test.go and transformation_test.go at c13349c4 (Apache-2.0), evaluated by the translation.

Left out are those that are no matter of an expression: a record that is no JSON, a filter that gives a number, and one that is disabled.
"""

from typing import Any

import pytest
from support.engines import stage_engine
from support.expr_case import FAILED, evaluated

FIELDS = {
    **dict.fromkeys(("name", "status", "email", "text", "ts", "ua", "query", "filename", "request_query", "_x40timestamp"), "string"),
    **dict.fromkeys(("path", "http_user_agent", "request_time", "container_id", "request_id"), "string"),
    **dict.fromkeys(("age", "timestamp"), "int"),
    **dict.fromkeys(("price", "num"), "float"),
    **dict.fromkeys(("is_active", "is_student"), "bool"),
    **dict.fromkeys(("user", "company"), "object"),
    **dict.fromkeys(("tags", "items"), "array"),
}
FILTERS: list[tuple[str, dict[str, Any], Any]] = [
    ('name == "John"', {"name": "John"}, True),
    ('name == "John"', {"name": "Jane"}, False),
    ("age > 18", {"age": 25}, True),
    ("age > 18", {"age": 15}, False),
    ("is_active == true", {"is_active": True}, True),
    ("is_active == true", {"is_active": False}, False),
    ('age > 18 and name == "John"', {"age": 25, "name": "John"}, True),
    ('age > 18 and name == "John"', {"age": 25, "name": "Jane"}, False),
    ('age > 18 or name == "John"', {"age": 15, "name": "John"}, True),
    ('age > 18 or name == "John"', {"age": 15, "name": "Jane"}, False),
    ("price >= 100.5", {"price": 100.5}, True),
    ("price >= 100.5", {"price": 99.99}, False),
    ("(age > 18 and age < 65) or is_student == true", {"age": 25, "is_student": False}, True),
    ("(age > 18 and age < 65) or is_student == true", {"age": 70, "is_student": False}, False),
    ("user.age > 18", {"user": {"age": 25}}, True),
    ("user.age > 18", {"user": {"age": 15}}, False),
    ('user.name == "John"', {"user": {"name": "John"}}, True),
    ('user.name == "John"', {"user": {"name": "Jane"}}, False),
    ('company.department.manager == "Alice"', {"company": {"department": {"manager": "Alice"}}}, True),
    ("user.age > 18 and user.active == true", {"user": {"age": 25, "active": True}}, True),
    ("tags[0] == 1", {"tags": [1, 2, 3]}, True),
    ("true", {"age": 25}, True),
    ("false", {"age": 25}, False),
    ("age > 18", {"name": "John"}, (FAILED,)),
    ("true", {}, True),
    ("name == nil", {"name": None}, True),
    ('name != "John"', {"name": "Jane"}, True),
    ("age <= 18", {"age": 18}, True),
    ('status in ["active", "pending"]', {"status": "active"}, True),
    ('status not in ["active", "pending"]', {"status": "completed"}, True),
    ("name == nil", {"name": "John"}, False),
    ("name != nil", {"name": "John"}, True),
    ("name != nil", {"name": None}, False),
    ("user.email == nil", {"user": {"email": None}}, True),
    ("user.email == nil", {"user": {"email": "test@example.com"}}, False),
    ("user.email != nil", {"user": {"email": "test@example.com"}}, True),
    ("age > 18 and email == nil", {"age": 25, "email": None}, True),
    ("age < 18 or email == nil", {"age": 25, "email": None}, True),
    ("name != nil and age > 18", {"name": "John", "age": 25}, True),
]
TRANSFORMS: list[tuple[str, dict[str, Any], Any]] = [
    ("toString(num)", {"num": 123}, "123"),
    ('containsStr(text, "world")', {"text": "hello world"}, True),
    ('hasPrefix(text, "hello")', {"text": "hello world"}, True),
    ('hasSuffix(text, "world")', {"text": "hello world"}, True),
    ("upper(text)", {"text": "hello"}, "HELLO"),
    ("lower(text)", {"text": "HELLO"}, "hello"),
    ("trim(text)", {"text": "  hello  "}, "hello"),
    ('split(text, ",")', {"text": "a,b,c"}, ["a", "b", "c"]),
    ('join(items, ",")', {"items": ["a", "b", "c"]}, "a,b,c"),
    ('replace(text, "world", "universe")', {"text": "hello world"}, "hello universe"),
    ("toInt(text)", {"text": "123"}, 123),
    ("toInt(text)", {"text": "abc"}, 0),
    ("toFloat(text)", {"text": "123.45"}, 123.45),
    ("toFloat(text)", {"text": "abc"}, 0.0),
    ("toFloat(text)", {"text": "4"}, 4.0),
    ("toInt(text)", {"text": "4.2"}, 4),
    ('join(split(text, ","), "-")', {"text": "a,b,c"}, "a-b-c"),
    ("toDate(timestamp)", {"timestamp": 1729411544}, "2024-10-20"),
    ("toDate(parseISO8601(ts))", {"ts": "2024-10-20 08:25:44.068833"}, "2024-10-20"),
    ('parseUserAgent(ua, "device")', {"ua": "Mozilla/5.0 (iPhone; CPU iPhone OS 14_0 like Mac OS X)"}, "Mobile"),
    ('parseUserAgent(ua, "device")', {"ua": "Mozilla/5.0 (iPad; CPU OS 14_0 like Mac OS X)"}, "Tablet"),
    ('parseUserAgent(ua, "device")', {"ua": "Mozilla/5.0 (Windows NT 10.0; Win64; x64)"}, "Desktop"),
    (
        'parseUserAgent(ua, "browser")',
        {"ua": "Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/120.0.0.0 Safari/537.36"},
        "Chrome",
    ),
    (
        'parseUserAgent(ua, "browser")',
        {"ua": "Mozilla/5.0 (Windows NT 10.0; Win64; x64; rv:120.0) Gecko/20100101 Firefox/120.0"},
        "Firefox",
    ),
    (
        'parseUserAgent(ua, "browser")',
        {"ua": "Mozilla/5.0 (Macintosh; Intel Mac OS X 10_15_7) AppleWebKit/605.1.15 (KHTML, like Gecko) Version/14.0 Safari/605.1.15"},
        "Safari",
    ),
    (
        'parseUserAgent(ua, "browser")',
        {"ua": "Mozilla/5.0 (Windows NT 10.0; Win64; x64) (KHTML, like Gecko) Chrome/120.0.0.0 Safari/537.36 Edg/120.0.0.0"},
        "Edge",
    ),
    ('parseUserAgent(ua, "os")', {"ua": "Mozilla/5.0 (Windows NT 10.0; Win64; x64)"}, "Windows"),
    ('parseUserAgent(ua, "os")', {"ua": "Mozilla/5.0 (Macintosh; Intel Mac OS X 10_15_7)"}, "macOS"),
    ('parseUserAgent(ua, "os")', {"ua": "Mozilla/5.0 (iPhone; CPU iPhone OS 14_0 like Mac OS X)"}, "iOS"),
    ('parseUserAgent(ua, "os")', {"ua": "Mozilla/5.0 (Linux; Android 11; SM-G991B)"}, "Android"),
    ('parseUserAgent(ua, "os")', {"ua": "Mozilla/5.0 (X11; Linux x86_64)"}, "Linux"),
    ("keys(parseQuery(query))", {"query": "a=1&b=2&c=3"}, ["a", "b", "c"]),
    ('parseQuery(query)["a"]', {"query": "a=1&b=2&c=3"}, "1"),
    ('parseQuery(query)["ep.value"]', {"query": "ep.event_id=123&ep.value=99.99"}, "99.99"),
    ("len(items)", {"items": ["a", "b", "c"]}, 3),
    ("name", {"name": "John", "age": 30}, "John"),
    ('hasSuffix(filename, ".png") || hasSuffix(filename, ".jpg") ? 1 : 0', {"filename": "photo.jpg"}, 1),
    ('hasSuffix(filename, ".png") || hasSuffix(filename, ".jpg") ? true : false', {"filename": "photo.jpg"}, True),
    ("toInt(ceil(num))", {"num": 4.2}, 5),
    ("toInt(floor(num))", {"num": 4.7}, 4),
    ("toInt(round(num))", {"num": 4.5}, 5),
]
RECORD = {
    "_x40timestamp": "2025-10-20 08:25:44.068833",
    "container_id": "lowzohumkv",
    "request_id": "63e4a61d12911f99fc19b18a99f5e850",
    "path": "/g/collect",
    "request_query": "cid=220153569.1760948734&sid=1760948734&sct=1&seg=1&_et=7545&en=scroll&ep.event_id=1760948732998.3",
    "http_user_agent": "Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36",
    "request_time": "0.19",
    "status": "200",
}
MAPPING = {
    "timestamp": ("parseISO8601(_x40timestamp)", 1760948744),
    "date": ("toDate(parseISO8601(_x40timestamp))", "2025-10-20"),
    "product_id": ("container_id", "lowzohumkv"),
    "nginx_event_id": ("request_id", "63e4a61d12911f99fc19b18a99f5e850"),
    "client_id": ('getQueryParam(request_query, "cid")', "220153569.1760948734"),
    "session_id": ('getQueryParam(request_query, "sid")', "1760948734"),
    "session_number": ('toInt(getQueryParam(request_query, "sct")) != 0 ? toInt(getQueryParam(request_query, "sct")) : 1', 1),
    "is_session_engaged": ('getQueryParam(request_query, "seg")', "1"),
    "engagement_time_msec": ('toInt(getQueryParam(request_query, "_et")) != 0 ? toInt(getQueryParam(request_query, "_et")) : 0', 7545),
    "event_id": ('getNestedParam(request_query, "ep.event_id")', "1760948732998.3"),
    "event_name": ('getQueryParam(request_query, "en")', "scroll"),
    "event_request_type": ("extractPathType(path)", "collect"),
    "page_title": ('urlDecode(getQueryParam(request_query, "dt"))', ""),
    "purchase_value": ('waterfall([getNestedParam(request_query, "ep.value"), getNestedParam(request_query, "epn.value")])', ""),
    "purchase_currency": ('waterfall([getQueryParam(request_query, "cu"), getNestedParam(request_query, "ep.currency"), "EUR"])', "EUR"),
    "has_enhanced_conversions": ('hasKeyPrefix(parseQuery(request_query), ["ep.user_data", "ep.email"]) ? 1 : 0', 0),
    "has_ecommerce_data": ('hasAnyKey(parseQuery(request_query), ["pr1", "ep.items", "ep.transaction_id"]) ? 1 : 0', 0),
    "device_type": ('parseUserAgent(http_user_agent, "device")', "Desktop"),
    "browser_name": ('parseUserAgent(http_user_agent, "browser")', "Unknown"),
    "os_name": ('parseUserAgent(http_user_agent, "os")', "Windows"),
    "http_status": ("status", "200"),
    "request_time_usec": ("toFloat(request_time) * 1000000", 190000),
}
"""The columns that GlassFlow's test of a whole mapping makes of RECORD."""


@pytest.mark.parametrize(("expression", "record", "expected"), [*FILTERS, *TRANSFORMS])
def test_a_case_of_glassflow_gives_its_answer(expression: str, record: dict[str, Any], expected: Any) -> None:
    (value,) = evaluated(stage_engine().connection, expression, FIELDS, [record])
    assert value == expected


@pytest.mark.parametrize("column", MAPPING)
def test_a_mapping_of_glassflow_gives_its_columns(column: str) -> None:
    expression, expected = MAPPING[column]
    (value,) = evaluated(stage_engine().connection, expression, FIELDS, [RECORD])
    assert value == expected
