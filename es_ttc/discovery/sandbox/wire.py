"""Messages between both sides: a length, then JSON; descriptors of shared memory ride along.

JSON, because what comes from the child is untrusted: reading it runs nothing.
"""

import array
import hashlib
import socket
import struct
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import orjson

MOST_BYTES = 64 * 2**20
_HEADER = struct.Struct("<I")
_MOST_DESCRIPTORS = 8


class Closed(Exception):
    """The other side has gone."""


class Malformed(Exception):
    """The other side sent what is no message."""


@cache
def edition() -> str:
    """Return a digest of both sides' code, as it was when this process first asked."""
    files = sorted(Path(__file__).parent.glob("*.py"))
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()[:16]


def send(channel: socket.socket, message: dict[str, Any], descriptors: Sequence[int] = ()) -> None:
    """Send a message, with open descriptors that the other side gets copies of."""
    body = orjson.dumps(message)
    if len(body) > MOST_BYTES:
        raise Malformed(f"a message of {len(body):,} bytes; {MOST_BYTES:,} are allowed")
    ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
    try:
        channel.sendmsg([_HEADER.pack(len(body))], ancillary)
        view = memoryview(body)
        while view:
            view = view[channel.sendmsg([view[: 1 << 20]]) :]
    except (BrokenPipeError, ConnectionError) as error:
        raise Closed from error


def receive(channel: socket.socket, *, descriptors: bool = False) -> tuple[dict[str, Any], list[int]]:
    """Return the next message and, where they are wanted, the descriptors that came with it.

    Raises:
        Closed: The other side has gone.
        Malformed: It sent something else.
    """
    header, given = _exactly(channel, _HEADER.size, descriptors=descriptors)
    (size,) = _HEADER.unpack(header)
    if size > MOST_BYTES:
        raise Malformed(f"a message of {size:,} bytes; {MOST_BYTES:,} are allowed")
    body, _ = _exactly(channel, size, descriptors=False)
    try:
        message = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise Malformed(str(error)) from error
    if not isinstance(message, dict):
        raise Malformed(f"a {type(message).__name__} in place of an object")
    return message, given


def _exactly(channel: socket.socket, size: int, *, descriptors: bool) -> tuple[bytes, list[int]]:
    space = socket.CMSG_SPACE(_MOST_DESCRIPTORS * 4) if descriptors else 0
    data, given = bytearray(), array.array("i")
    while len(data) < size:
        try:
            part, ancillary, *_ = channel.recvmsg(min(size - len(data), 1 << 20), space)
        except ConnectionError as error:
            raise Closed from error
        for level, kind, content in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                given.frombytes(content)
        if not part:
            raise Closed
        data += part
    return bytes(data), given.tolist()
