"""Takes connections to loopback ports of a host, and passes them on to the same ports of another network: `NETWORK PORT...`.

NETWORK is a file of that network's namespace. It returns when all ports listen, and goes on in the background.
"""

import asyncio
import ctypes
import os
import socket
import sys
from contextlib import suppress

_NEW_NETWORK = 0x40000000
_CHUNK_BYTES = 256 * 1024
HOST = "127.0.0.1"


def _enter(network: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(network, _NEW_NETWORK):
        raise OSError(ctypes.get_errno(), "entering the network")


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while chunk := await reader.read(_CHUNK_BYTES):
            writer.write(chunk)
            await writer.drain()
    with suppress(OSError, RuntimeError):
        writer.close()


async def _serve(listeners: list[socket.socket]) -> None:
    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            port = writer.get_extra_info("sockname")[1]
            other_reader, other_writer = await asyncio.open_connection(HOST, port, limit=_CHUNK_BYTES)
        except OSError:
            writer.close()
            return
        await asyncio.gather(_copy(reader, other_writer), _copy(other_reader, writer))

    servers = [await asyncio.start_server(connect, sock=listener, limit=_CHUNK_BYTES) for listener in listeners]
    await asyncio.gather(*(server.serve_forever() for server in servers))


def main(network: str, *ports: str) -> None:
    listeners = [socket.create_server((HOST, int(port))) for port in ports]
    outside = os.open(network, os.O_RDONLY)
    if os.fork():
        os._exit(0)
    _enter(outside)
    asyncio.run(_serve(listeners))


if __name__ == "__main__":
    main(*sys.argv[1:])
