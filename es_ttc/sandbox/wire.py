"""Messages between both processes: two lengths, a flat JSON object, bytes, and descriptors of shared memory.

The child's messages are untrusted. Reading them runs no code (JSON, no pickle), is cheap (both parts have a limit,
which is checked before reading, and nothing is nested) and ends at one deadline, however slow the sender is.
"""

import array
import hashlib
import socket
import struct
import time
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import orjson

_HEADER = struct.Struct("<II")
_MAX_DESCRIPTORS = 8
_PART = 1 << 20
_ENDS = "q"


class Limit(NamedTuple):
    """Maximum number of bytes of a message."""

    about: int
    payload: int


FROM_PARENT = Limit(64 * 2**20, 0)
FROM_CHILD = Limit(64 * 2**10, 8 * 2**20)
MAX_MESSAGE_TEXTS = 10_000  # texts in one message
MAX_TEXT_CHARACTERS = 20_000  # characters of a text; encoders read fewer
_BATCH_BYTES = FROM_CHILD.payload // 2


class PeerClosed(Exception):
    """The other process has closed the connection."""


class MalformedMessage(Exception):
    """The other process sent an invalid message."""


class WireMessage(NamedTuple):
    """A received message."""

    about: dict[str, Any]
    payload: bytes
    descriptors: list[int]


@cache
def edition() -> str:
    """Return a digest of both processes' code, as of the first call."""
    files = sorted(Path(__file__).parent.glob("*.py"))
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()[:16]


def send(
    channel: socket.socket,
    about: dict[str, Any],
    *,
    payload: bytes = b"",
    descriptors: Sequence[int] = (),
    deadline: float | None = None,
) -> None:
    """Send a message, with open descriptors of which the receiver gets copies."""
    body = orjson.dumps(about)
    ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
    try:
        _until(channel, deadline)
        channel.sendmsg([_HEADER.pack(len(body), len(payload))], ancillary)
        for part in (body, payload):
            view = memoryview(part)
            while view:
                _until(channel, deadline)
                view = view[channel.sendmsg([view[:_PART]]) :]
    except (BrokenPipeError, ConnectionError) as error:
        raise PeerClosed from error


def receive(
    channel: socket.socket, limit: Limit, *, descriptors: bool = False, deadline: float | None = None
) -> WireMessage:
    """Return the next message and, if requested, the descriptors that came with it."""
    header, received = _exactly(channel, _HEADER.size, descriptors, deadline)
    sizes = _HEADER.unpack(header)
    for size, most in zip(sizes, limit, strict=True):
        if size > most:
            raise MalformedMessage(f"a message of {size:,} bytes; {most:,} are allowed")
    body, _ = _exactly(channel, sizes[0], False, deadline)
    payload, _ = _exactly(channel, sizes[1], False, deadline)
    try:
        about = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise MalformedMessage(str(error)) from error
    if not isinstance(about, dict):
        raise MalformedMessage(f"a {type(about).__name__} in place of an object")
    return WireMessage(about, bytes(payload), received)


def require_flat(message: WireMessage) -> WireMessage:
    """Return a message whose object contains only plain values."""
    if any(isinstance(value, dict | list) for value in message.about.values()):
        raise MalformedMessage("a value that holds others")
    return message


def packed(texts: Sequence[str]) -> bytes:
    """Return texts as bytes: the end of each, then all of them as UTF-8."""
    encoded = [text.encode() for text in texts]
    ends = array.array(_ENDS)
    end = 0
    for one in encoded:
        end += len(one)
        ends.append(end)
    return ends.tobytes() + b"".join(encoded)


def unpack_message(payload: bytes, count: int) -> list[str]:
    """Return the texts of :func:`packed`, each cut to the allowed length."""
    if not 0 <= count <= MAX_MESSAGE_TEXTS:
        raise MalformedMessage(f"{count:,} texts in one message; {MAX_MESSAGE_TEXTS:,} are allowed")
    width = 8 * count
    ends = array.array(_ENDS)
    if len(payload) < width:
        raise MalformedMessage("fewer texts than it says")
    ends.frombytes(payload[:width])
    data = memoryview(payload)[width:]
    bounds = [0, *ends]
    if any(end < start for start, end in pairwise(bounds)) or bounds[-1] != len(data):
        raise MalformedMessage("texts that end where there are none")
    try:
        return [str(data[start:end], "utf-8")[:MAX_TEXT_CHARACTERS] for start, end in pairwise(bounds)]
    except UnicodeDecodeError as error:
        raise MalformedMessage("a text that is not UTF-8") from error


def batches(texts: Sequence[str]) -> list[Sequence[str]]:
    """Return texts in groups that fit into one message each, each text cut to the allowed length."""
    runs: list[Sequence[str]] = []
    run: list[str] = []
    room = _BATCH_BYTES
    for text in texts:
        cut = text[:MAX_TEXT_CHARACTERS]
        size = 4 * len(cut) + 8
        if run and (size > room or len(run) == MAX_MESSAGE_TEXTS):
            runs.append(run)
            run, room = [], _BATCH_BYTES
        run.append(cut)
        room -= size
    return [*runs, run] if run else runs


def _exactly(
    channel: socket.socket, size: int, descriptors: bool, deadline: float | None
) -> tuple[bytearray, list[int]]:
    space = socket.CMSG_SPACE(_MAX_DESCRIPTORS * 4) if descriptors else 0
    data, received = bytearray(), array.array("i")
    while len(data) < size:
        _until(channel, deadline)
        try:
            part, ancillary, *_ = channel.recvmsg(min(size - len(data), _PART), space)
        except ConnectionError as error:
            raise PeerClosed from error
        for level, kind, content in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                received.frombytes(content)
        if not part:
            raise PeerClosed
        data += part
    return data, received.tolist()


def _until(channel: socket.socket, deadline: float | None) -> None:
    """Set the timeout of the next call on a socket to the deadline; the child has none and makes no call here."""
    if deadline is None:
        return
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    channel.settimeout(left)
