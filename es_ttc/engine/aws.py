"""AWS Signature Version 4, as Amazon OpenSearch Service and OpenSearch Serverless require it for IAM roles and users.

botocore signs, as in opensearch-py's own signers, and finds the credentials: environment, profile, container, instance.
"""

import asyncio
import re
from typing import Any
from urllib.parse import quote, unquote_plus

from yarl import URL

from es_ttc.engine.addresses import engine_addresses, engine_urls
from es_ttc.errors import ConfigurationError
from es_ttc.settings import EngineSettings

_BODY_HASH = "X-Amz-Content-SHA256"
_SERVERLESS_HOST = ".aoss."  # in every host of OpenSearch Serverless, whose signatures name another service
_LONG = 2**20  # length of a body from which its hash is computed on a thread, in bytes
_OTHER_CREDENTIALS = (
    "username", "password", "password_file", "api_key", "api_key_file", "bearer_token", "bearer_token_file",
)  # fmt: skip


class RequestSigner:
    """Signs requests."""

    def __init__(self, credentials: Any, region: str, service: str) -> None:
        self._credentials = credentials
        self._region = region
        self._service = service

    async def headers(self, method: str, url: URL, body: bytes | None) -> dict[str, str]:
        """Return the headers that sign a request."""
        waits = getattr(self._credentials, "refresh_needed", None)
        if len(body or b"") >= _LONG or (waits is not None and waits()):
            return await asyncio.to_thread(self._headers, method, url, body)
        return self._headers(method, url, body)

    def _headers(self, method: str, url: URL, body: bytes | None) -> dict[str, str]:
        from botocore.auth import SigV4Auth
        from botocore.awsrequest import AWSRequest
        from botocore.exceptions import BotoCoreError

        request = AWSRequest(method=method, url=str(url), data=body or b"")
        try:
            auth = SigV4Auth(self._credentials.get_frozen_credentials(), self._service, self._region)
        except BotoCoreError as error:
            raise ConfigurationError(f"the AWS credentials for [aws_region] cannot be renewed: {error}") from error
        request.headers[_BODY_HASH] = auth.payload(request)  # before signing: it is one of the signed headers
        auth.add_auth(request)
        return dict(request.headers.items())


def signer_of(settings: EngineSettings) -> RequestSigner | None:
    """Return what signs requests to the engine; None if ``aws_region`` is not set."""
    if settings.aws_region is None:
        return None
    other = next((name for name in _OTHER_CREDENTIALS if getattr(settings, name) is not None), None)
    if other is None and any(url.user is not None for url in engine_urls(settings.engine)):
        other = "engine"
    if other is not None:
        raise ConfigurationError(f"[aws_region] signs requests, and [{other}] has other credentials: keep one of them")
    addresses = engine_addresses(settings)
    if len(addresses) > 1:
        raise ConfigurationError("[engine] must be one address where [aws_region] is set: that of the domain")
    service = "aoss" if _SERVERLESS_HOST in addresses[0].host else "es"
    return RequestSigner(_credentials(), settings.aws_region, service)


def _credentials() -> Any:
    """Return the credentials of botocore's chain."""
    try:
        from botocore.exceptions import BotoCoreError
        from botocore.session import Session
    except ImportError as error:
        raise ConfigurationError("[aws_region] needs botocore: pip install 'es-ttc[aws]'") from error
    try:
        found = Session().get_credentials()
    except BotoCoreError as error:
        raise ConfigurationError(f"the AWS credentials for [aws_region] cannot be read: {error}") from error
    if found is None:
        raise ConfigurationError(
            "[aws_region] is set, and botocore finds no AWS credentials: set AWS_PROFILE, or AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY, or run where a role is attached"
        )
    return found


def canonical_query(query: str) -> str:
    """Return a query string in the one encoding that the signature knows; its meaning is the same."""
    pairs = (part.partition("=") for part in re.split("[&;]", query) if part)
    return "&".join(f"{_encoded(name)}={_encoded(value)}" for name, _, value in pairs)


def _encoded(text: str) -> str:
    return quote(unquote_plus(text, errors="surrogateescape"), safe="-_.~", errors="surrogateescape")
