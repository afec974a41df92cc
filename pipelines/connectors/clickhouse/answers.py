"""Connections to ClickHouse that take no answer for whole that ended among its headers.

`http.client` takes the end of a connection for the end of the headers. Without `Content-Length` and `Transfer-Encoding` among them the body
is then empty, and the driver makes no rows of it: a look-up of stored rows would have found none. ClickHouse, and what stands before it,
says one of the two in HTTP/1.1.
"""

from functools import lru_cache
from typing import Any

from clickhouse_connect.driver.httputil import check_env_proxy, get_pool_manager
from urllib3 import HTTPConnectionPool, HTTPSConnectionPool, PoolManager
from urllib3.exceptions import ProtocolError
from urllib3.response import BaseHTTPResponse

from pipelines.config import ClickHouseConnection


def pool_for(connection: ClickHouseConnection) -> PoolManager | None:
    """The connections of this process for the driver's `pool_mgr`, which raise ProtocolError for an answer that ended among its headers.

    None behind a proxy that the environment names: the driver makes its own.
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
    # The header itself may be cut: its value counts.
    is_counted = response.headers.get("Content-Length", "").strip().isdigit()
    if not is_counted and response.headers.get("Transfer-Encoding", "").strip().lower() != "chunked":
        response.close()
        raise ProtocolError("the answer ended among its headers")
    return response


class _Http(HTTPConnectionPool):
    def urlopen(self, *arguments: Any, **options: Any) -> BaseHTTPResponse:
        return _checked(super().urlopen(*arguments, **options))


class _Https(HTTPSConnectionPool):
    def urlopen(self, *arguments: Any, **options: Any) -> BaseHTTPResponse:
        return _checked(super().urlopen(*arguments, **options))
