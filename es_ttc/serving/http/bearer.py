"""Tokens of requests to the gateway's own endpoints."""

import hmac
from collections.abc import Iterable
from dataclasses import dataclass

from pydantic import SecretStr

TOKEN_HEADER = b"x-ttc-token"
"""Carries the admin token of callers whose `Authorization` is for the engine."""


def carries(authorization: str, token: SecretStr) -> bool:
    """Return whether the value of an Authorization header is a bearer token; the comparison takes constant time."""
    expected = f"Bearer {token.get_secret_value()}".encode()
    return hmac.compare_digest(authorization.encode(errors="replace"), expected)


@dataclass(frozen=True, slots=True)
class AdminToken:
    """The token of the endpoints below `/_ttc/`, and which of them do not ask for it.

    Attributes:
        token: The token.
        exempt: Paths of the endpoints that are answered without it, or that check a token of their own.
        open_below: Beginnings of paths that are answered without it: files that hold nothing of anyone.
    """

    token: SecretStr
    exempt: frozenset[str]
    open_below: tuple[str, ...] = ()

    def admits(self, path: str, headers: Iterable[tuple[bytes, bytes]]) -> bool:
        """Return whether a request below `/_ttc/` is let in."""
        if path in self.exempt or path.startswith(self.open_below):
            return True
        return any(self._is_mine(name, value) for name, value in headers)

    def without(self, headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        """Return a request's headers without the token, so that the engine does not get it."""
        return [(name, value) for name, value in headers if not self._is_mine(name, value)]

    def _is_mine(self, name: bytes, value: bytes) -> bool:
        text = value.decode("latin-1")
        if name == b"authorization":
            return carries(text, self.token)
        return name == TOKEN_HEADER and carries(f"Bearer {text}", self.token)
