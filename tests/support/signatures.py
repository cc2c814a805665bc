"""AWS Signature Version 4 as its specification describes it, to check what was received: no code of botocore's."""

import hashlib
import hmac
from collections.abc import Mapping
from urllib.parse import quote, unquote

ALGORITHM = "AWS4-HMAC-SHA256"


def is_signed(method: str, target: str, headers: Mapping[str, str], body: bytes, *, secret: str, region: str) -> bool:
    """Return whether a request's signature is that of its method, target, headers and body.

    Args:
        method: The HTTP method.
        target: Path and query string as received.
        headers: Names in lower case.
        body: The body as received.
        secret: The secret key.
        region: The region that must be signed for.
    """
    algorithm, _, rest = headers.get("authorization", "").partition(" ")
    if algorithm != ALGORITHM:
        return False
    parts = dict(part.strip().split("=", 1) for part in rest.split(","))
    _, day, *scope = parts["Credential"].split("/")
    if scope != [region, "es", "aws4_request"] or not headers["x-amz-date"].startswith(day):
        return False
    given = hashlib.sha256(body).hexdigest()
    if headers.get("x-amz-content-sha256", given) != given:
        return False
    signed = parts["SignedHeaders"].split(";")
    if "host" not in signed or any(name.startswith("x-amz-") and name not in signed for name in headers):
        return False
    found = signature(method, target, {name: headers[name] for name in signed}, given, secret, [day, *scope])
    return hmac.compare_digest(found, parts["Signature"])


def signature(
    method: str, target: str, headers: Mapping[str, str], body_hash: str, secret: str, scope: list[str]
) -> str:
    """Return the signature of a request by its signed headers, with the day first in the scope."""
    path, _, query = target.partition("?")
    pairs = [part.partition("=") for part in query.split("&") if part]
    canonical = "\n".join(
        (
            method,
            quote(path, safe="/-_.~"),
            "&".join(sorted(f"{_encoded(name)}={_encoded(value)}" for name, _, value in pairs)),
            *(f"{name}:{' '.join(headers[name].split())}" for name in sorted(headers)),
            "",
            ";".join(sorted(headers)),
            body_hash,
        )
    )
    to_sign = "\n".join(
        (ALGORITHM, headers["x-amz-date"], "/".join(scope), hashlib.sha256(canonical.encode()).hexdigest())
    )
    key = f"AWS4{secret}".encode()
    for part in scope:
        key = hmac.digest(key, part.encode(), "sha256")
    return hmac.digest(key, to_sign.encode(), "sha256").hex()


def _encoded(text: str) -> str:
    return quote(unquote(text), safe="-_.~")
