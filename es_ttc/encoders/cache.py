"""A disk cache of encodings: evaluation, demo and tests encode a text once.

It is one SQLite file in write-ahead mode: several processes may use it at once, and a killed one does not damage it.
Vectors are stored as the float32 that the encoder returned, so a second run gives exactly the same figures (1.5 kB per
token of 384 components).
"""

import copy
import hashlib
import logging
import sqlite3
import struct
import threading
import time
import weakref
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from es_ttc.common.private_files import make_private_folder, touch_private
from es_ttc.encoders.base import Encoder, EncoderIdentity, Encodings, Role
from es_ttc.encoders.trained import TrainedEncoder
from es_ttc.vectors.tokens import Float32

logger = logging.getLogger(__name__)

_FILE = "encodings-v1.sqlite"
_DEFAULT_BYTES = 8 << 30
_BUSY_SECONDS = 30.0
# A read updates the time of use only after a while, so that most reads write nothing.
_TOUCH_SECONDS = 3600
_KEYS_PER_QUERY = 256
_HEADER = struct.Struct("<IIi?")  # CRC-32 of the rest, components, rows (-1: pooled alone), truncated
_SHARE = struct.Struct("<d")

_PRIMARY_CODE = 0xFF  # extended codes have the primary one in their lowest byte
_DAMAGED = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
_OF_NO_USE = frozenset(
    {
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_PERM,
        sqlite3.SQLITE_AUTH,
    }
)

_SCHEMA = """
CREATE TABLE IF NOT EXISTS entries (id INTEGER PRIMARY KEY, key BLOB NOT NULL UNIQUE, size INTEGER, used INTEGER);
CREATE INDEX IF NOT EXISTS entries_by_use ON entries (used, size);
CREATE TABLE IF NOT EXISTS vectors (id INTEGER PRIMARY KEY, value BLOB NOT NULL);
"""


@dataclass(frozen=True, slots=True)
class Encoding:
    """The encoding of one text; ``tokens`` and ``offsets`` are None if they were not requested."""

    pooled: Float32
    tokens: Float32 | None
    offsets: NDArray[np.int32] | None
    truncated: bool
    encoded_share: float | None  # None in entries of earlier releases


class CachedEncoder:
    """An encoder with a cache; it implements :class:`~es_ttc.encoders.base.Encoder`.

    Args:
        encoder: Encodes texts that are not in the cache.
        folder: Folder of the file; created if missing. Several encoders share it.
        max_bytes: Maximum size of the entries; the least recently used ones are dropped.
    """

    def __init__(self, encoder: Encoder, folder: Path, *, max_bytes: int = _DEFAULT_BYTES) -> None:
        self._encoder = encoder
        self._store = EncodingStore(folder / _FILE, max_bytes=max_bytes)

    @property
    def identity(self) -> EncoderIdentity:
        """The encoder's identity."""
        return self._encoder.identity

    @property
    def backend(self) -> str:
        """The encoder's backend and arithmetic."""
        return self._encoder.backend

    @property
    def distinguishes_roles(self) -> bool:
        """Whether the encoder behind it distinguishes roles."""
        return self._encoder.distinguishes_roles

    @property
    def stop_words(self) -> frozenset[str]:
        """The stop words of the encoder behind it."""
        return self._encoder.stop_words

    @property
    def uncached(self) -> Encoder:
        """The encoder behind it."""
        return self._encoder

    def encode(
        self, texts: Sequence[str], *, role: Role = "document", tokens: bool = True, max_tokens: int = 1024
    ) -> Encodings:
        """Return encodings from the cache, and encode the others in one call; see the encoder's own ``encode``."""
        kind = f"{self.identity.key}\n{self.backend}\n{role}\n{'tokens' if tokens else 'pooled'}\n{max_tokens}\n"
        keys = [_key(kind, text) for text in texts]
        known = self._store.get(set(keys))
        # The same text twice is encoded once.
        unknown = {key: text for key, text in zip(keys, texts, strict=True) if key not in known}
        if unknown:
            fresh = self._encoder.encode(list(unknown.values()), role=role, tokens=tokens, max_tokens=max_tokens)
            added = {key: _one(fresh, position) for position, key in enumerate(unknown)}
            self._store.put(added)
            known |= added
        return _gather([known[key] for key in keys], self.identity.dims)

    def adapted(self, adapter: str) -> "CachedEncoder | None":
        """Return the same model under an adapter that it ships; all share one file."""
        found = self._encoder.adapted(adapter)
        return None if found is None else self._sharing_file(found)

    def shortened(self, max_length: int) -> "CachedEncoder":
        """Return the same for texts cut at ``max_length`` tokens; both share one file."""
        return self._sharing_file(self._encoder.shortened(max_length))

    def close(self) -> None:
        """Close the file; encoding afterwards is an error of the caller."""
        self._store.close()

    def _sharing_file(self, encoder: Encoder) -> "CachedEncoder":
        shared = copy.copy(self)
        shared._encoder = encoder  # noqa: SLF001 - of this class
        return shared


def cached(encoder: Encoder, folder: Path) -> Encoder:
    """Return an encoder with a cache; for trained heads the base encoder is cached, because heads are fast."""
    if isinstance(encoder, TrainedEncoder):
        return encoder.over(lambda base: CachedEncoder(base, folder))
    return CachedEncoder(encoder, folder)


class EncodingStore:
    """A bounded key-value store of encodings; thread-safe and safe to share between processes.

    Entries or files that cannot be read are treated as missing, and those that cannot be written are dropped: both are
    logged, neither is an error. A file that cannot be used at all (no permission, a lasting lock) is not changed, and
    the cache is disabled; only a damaged file is created again.
    """

    def __init__(self, path: Path, *, max_bytes: int) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._open: sqlite3.Connection | None = None
        self._closer: Callable[[], object] = _nothing
        try:
            make_private_folder(path.parent)
            touch_private(path)
            self._connect()
        except sqlite3.DatabaseError as error:
            self._after(error, "opened")
        except OSError as error:
            self._go_without(error)

    def get(self, keys: set[bytes]) -> dict[bytes, Encoding]:
        """Return the encodings that are in the cache and undamaged."""
        found: dict[bytes, Encoding] = {}
        stale: list[int] = []
        ordered = sorted(keys)
        with self._guarded("read") as connection:
            if connection is None:
                return found
            for start in range(0, len(ordered), _KEYS_PER_QUERY):
                part = ordered[start : start + _KEYS_PER_QUERY]
                marks = ",".join("?" * len(part))
                rows = connection.execute(
                    "SELECT id, key, used, value FROM entries JOIN vectors USING (id) "  # noqa: S608 - marks only
                    f"WHERE key IN ({marks})",
                    part,
                )
                for number, key, used, value in rows:
                    encoding = _unpack(value)
                    if encoding is None:
                        logger.warning("a damaged entry in %s is encoded again", self._path)
                        continue
                    found[bytes(key)] = encoding
                    if used < time.time() - _TOUCH_SECONDS:
                        stale.append(number)
            if stale:
                with _transaction(connection):
                    now = int(time.time())
                    connection.executemany("UPDATE entries SET used = ? WHERE id = ?", [(now, n) for n in stale])
        return found

    def put(self, encodings: dict[bytes, Encoding]) -> None:
        """Store encodings, replace those of the same keys, and drop the least recently used ones above the limit."""
        packed = {key: _pack(encoding) for key, encoding in encodings.items()}
        with self._guarded("written") as connection:
            if connection is None:
                return
            with _transaction(connection):
                now = int(time.time())
                for key, value in packed.items():
                    (number,) = connection.execute(
                        "INSERT INTO entries (key, size, used) VALUES (?, ?, ?) "
                        "ON CONFLICT (key) DO UPDATE SET size = excluded.size, used = excluded.used RETURNING id",
                        (key, len(value), now),
                    ).fetchone()
                    connection.execute("INSERT OR REPLACE INTO vectors (id, value) VALUES (?, ?)", (number, value))
                self._evict(connection)

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._closer()

    def _evict(self, connection: sqlite3.Connection) -> None:
        (total,) = connection.execute("SELECT COALESCE(SUM(size), 0) FROM entries").fetchone()
        if total <= self._max_bytes:
            return
        # A tenth more than needed, so that this is not done at every write.
        outdated = connection.execute(
            "SELECT id FROM (SELECT id, SUM(size) OVER (ORDER BY used DESC, id DESC) AS kept FROM entries) "
            "WHERE kept > ?",
            (self._max_bytes * 9 // 10,),
        ).fetchall()
        connection.executemany("DELETE FROM vectors WHERE id = ?", outdated)
        connection.executemany("DELETE FROM entries WHERE id = ?", outdated)

    def _connect(self) -> None:
        connection = sqlite3.connect(
            self._path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False, cached_statements=16
        )
        try:
            connection.execute("PRAGMA page_size = 16384")
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")
            connection.executescript(_SCHEMA)
        except sqlite3.Error:
            connection.close()
            raise
        self._open = connection
        self._closer = weakref.finalize(self, connection.close)

    def _after(self, error: sqlite3.DatabaseError, done: str) -> None:
        """React to a failure: recreate a damaged file, disable the cache, or ignore it."""
        code = getattr(error, "sqlite_errorcode", 0) & _PRIMARY_CODE
        if code in _DAMAGED:
            self._start_afresh(error)
        elif code in _OF_NO_USE or self._open is None:
            self._go_without(error)
        else:
            logger.warning("%s could not be %s: %s", self._path, done, error)

    def _start_afresh(self, error: sqlite3.DatabaseError) -> None:
        logger.warning("%s is damaged (%s): it is begun again", self._path, error)
        self._close()
        try:
            for suffix in ("", "-wal", "-shm"):
                self._path.with_name(self._path.name + suffix).unlink(missing_ok=True)
            touch_private(self._path)
            self._connect()
        except (OSError, sqlite3.DatabaseError) as again:
            self._go_without(again)

    def _go_without(self, error: Exception) -> None:
        self._close()
        reason = error.strerror if isinstance(error, OSError) else error
        logger.error("the cache %s cannot be used (%s): texts are encoded without it", self._path, reason)

    def _close(self) -> None:
        self._closer()
        self._closer, self._open = _nothing, None

    @contextmanager
    def _guarded(self, done: str) -> Iterator[sqlite3.Connection | None]:
        """Yield the connection, None if the cache is disabled; a failure of the file is logged and ignored."""
        with self._lock:
            try:
                yield self._open
            except sqlite3.DatabaseError as error:
                self._after(error, done)


@contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


def _nothing() -> None:
    """Stand in for the closing of a file that is not open."""


def _key(kind: str, text: str) -> bytes:
    return hashlib.sha256((kind + text).encode("utf-8", "surrogatepass")).digest()[:16]


def _one(encodings: Encodings, position: int) -> Encoding:
    with_tokens = bool(encodings.tokens)
    return Encoding(
        pooled=encodings.pooled[position],
        tokens=encodings.tokens[position] if with_tokens else None,
        offsets=encodings.offsets[position] if with_tokens else None,
        truncated=bool(encodings.truncated[position]),
        encoded_share=encodings.encoded_shares[position] if encodings.encoded_shares else None,
    )


def _gather(parts: Sequence[Encoding], dims: int) -> Encodings:
    shares = tuple(part.encoded_share for part in parts if part.encoded_share is not None)
    pooled = np.stack([part.pooled for part in parts]) if parts else np.zeros((0, dims), dtype=np.float32)
    return Encodings(
        pooled=pooled,
        tokens=[part.tokens for part in parts if part.tokens is not None],
        offsets=[part.offsets for part in parts if part.offsets is not None],
        truncated=np.array([part.truncated for part in parts], dtype=np.bool_),
        encoded_shares=shares if len(shares) == len(parts) else (),
    )


def _pack(encoding: Encoding) -> bytes:
    rows = -1 if encoding.tokens is None else len(encoding.tokens)
    arrays: list[Float32 | NDArray[np.int32]] = [encoding.pooled]
    if encoding.tokens is not None and encoding.offsets is not None:
        arrays += [encoding.tokens, encoding.offsets]
    share = b"" if encoding.encoded_share is None else _SHARE.pack(encoding.encoded_share)
    body = b"".join((*(array.tobytes() for array in arrays), share))
    head = _HEADER.pack(0, len(encoding.pooled), rows, encoding.truncated)
    return struct.pack("<I", zlib.crc32(body, zlib.crc32(head[4:]))) + head[4:] + body


def _unpack(value: bytes) -> Encoding | None:
    """Return the encoding, or None if the bytes are damaged."""
    if len(value) < _HEADER.size:
        return None
    checksum, dims, rows, truncated = _HEADER.unpack_from(value)
    if zlib.crc32(memoryview(value)[4:]) != checksum:
        return None

    def floats(start: int, count: int) -> Float32:
        return np.frombuffer(value, dtype=np.float32, count=count, offset=start).copy()

    start = _HEADER.size
    pooled = floats(start, dims)
    start += pooled.nbytes
    tokens = offsets = None
    if rows >= 0:
        tokens = floats(start, rows * dims).reshape(rows, dims)
        start += tokens.nbytes
        offsets = np.frombuffer(value, dtype=np.int32, count=rows * 2, offset=start).copy().reshape(rows, 2)
        start += offsets.nbytes
    [share] = _SHARE.unpack_from(value, start) if len(value) > start else [None]
    return Encoding(pooled, tokens, offsets, truncated, share)
