"""Keys of caches that hold what was found out with a caller's credentials; no credential is stored."""

import secrets
from hashlib import blake2b

from es_ttc.serving.http.caller import RawHeaders

_CREDENTIALS = frozenset({b"authorization", b"cookie", b"es-security-runas-user", b"x-proxy-user", b"x-proxy-roles"})


class CallerKeys:
    """Computes keyed hashes of callers and targets."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)

    def of(self, headers: RawHeaders, target: bytes) -> bytes:
        """Return the key of a caller's headers and a target."""
        parts = [target, *(part for name, value in headers if name in _CREDENTIALS for part in (name, value))]
        return blake2b(b"".join(b"%d:%b" % (len(part), part) for part in parts), key=self._key).digest()

    def known(self, headers: RawHeaders) -> bool:
        """Return whether headers contain credentials."""
        return any(name in _CREDENTIALS for name, _ in headers)
