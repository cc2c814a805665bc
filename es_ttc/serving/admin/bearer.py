"""Bearer tokens of requests to the gateway's own endpoints."""

import hmac

from pydantic import SecretStr


def carries(authorization: str, token: SecretStr) -> bool:
    """Return whether the value of an Authorization header is a bearer token; the comparison takes constant time."""
    expected = f"Bearer {token.get_secret_value()}".encode()
    return hmac.compare_digest(authorization.encode(errors="replace"), expected)
