"""Connections to ClickHouse that reject an answer that was cut off within its headers.

`http.client` treats the end of a connection as the end of the headers. Without `Content-Length` and `Transfer-Encoding` the body is then
empty, and the driver returns no rows: a lookup of stored rows would have found none. ClickHouse, and any proxy before it, sends one of the
two headers in HTTP/1.1.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import clickhouse_connect
from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.httputil import check_env_proxy, get_pool_manager
from urllib3 import HTTPConnectionPool, HTTPSConnectionPool, PoolManager
from urllib3.exceptions import ProtocolError
from urllib3.response import BaseHTTPResponse

from pipelines.config import ClickHouseConnection
from pipelines.connectors.clickhouse.errors import TABLE_CLASSES, map_error
from pipelines.error_classes import ErrorClasses

CONNECT_TIMEOUT_SECONDS = 5
RESPONSE_TIMEOUT_SECONDS = 60


def open_client(
    connection: ClickHouseConnection,
    classes: ErrorClasses = TABLE_CLASSES,
    response_seconds: float = RESPONSE_TIMEOUT_SECONDS,
    settings: Mapping[str, str] | None = None,
) -> Client:
    """Open a connected client, whose statements all have these `settings`. Raise RetryableError or HaltError."""
    try:
        return clickhouse_connect.get_client(
            host=connection.host,
            port=connection.http_port_effective,
            username=connection.username,
            password=connection.password.get_secret_value(),
            secure=connection.secure,
            verify=not connection.skip_certificate_verification,
            pool_mgr=pool_for(connection),
            connect_timeout=CONNECT_TIMEOUT_SECONDS,
            send_receive_timeout=response_seconds,
            autogenerate_session_id=False,
            query_retries=0,
            settings=dict(settings or {}),
            # The server's message without address and version.
            show_clickhouse_errors="scrub",
            client_name="tallyflow",
        )
    except Exception as error:
        doing = f"connecting to ClickHouse at {connection.host}:{connection.http_port_effective}"
        raise map_error(doing, error, classes) from error


def pool_for(connection: ClickHouseConnection) -> PoolManager | None:
    """Return the connections of this process for the driver's `pool_mgr`; a cut-off answer raises ProtocolError.

    None if the environment names a proxy: the driver then creates its own pool.
    """
    scheme, host, port = "https" if connection.secure else "http", connection.host, connection.http_port_effective
    if check_env_proxy(scheme, host, port):
        return None
    return _pool(verify=not connection.skip_certificate_verification)


@lru_cache
def _pool(verify: bool) -> PoolManager:
    pool: PoolManager = get_pool_manager(verify=verify)
    pool.pool_classes_by_scheme = {"http": _Http, "https": _Https}
    return pool


def _checked(response: BaseHTTPResponse) -> BaseHTTPResponse:
    # The header itself may be cut off: check its value.
    is_counted = response.headers.get("Content-Length", "").strip().isdigit()
    if not is_counted and response.headers.get("Transfer-Encoding", "").strip().lower() != "chunked":
        response.close()
        raise ProtocolError("the answer was cut off within its headers")
    return response


class _Http(HTTPConnectionPool):
    def urlopen(self, *arguments: Any, **options: Any) -> BaseHTTPResponse:
        return _checked(super().urlopen(*arguments, **options))


class _Https(HTTPSConnectionPool):
    def urlopen(self, *arguments: Any, **options: Any) -> BaseHTTPResponse:
        return _checked(super().urlopen(*arguments, **options))
