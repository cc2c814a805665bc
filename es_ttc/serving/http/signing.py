"""AWS signatures of the requests that the gateway sends: its own, and callers' where it is set so.

A caller's own signature covers the engine's host, path and body, so a request with one can only be forwarded as it is.
"""

import secrets

from yarl import URL

from es_ttc.engine.aws import RequestSigner, canonical_query, signer_of
from es_ttc.errors import ConfigurationError, InvalidRequest
from es_ttc.serving.http.caller import RawHeaders
from es_ttc.settings import GatewaySettings

_SIGNED = b"AWS4-HMAC-SHA256"
_AUTHORIZATION = b"authorization"
_OF_SIGNATURES = b"x-amz-"


class GatewaySigner:
    """Signs requests with the gateway's AWS credentials.

    Attributes:
        mark: Value of ``authorization`` in the headers of the gateway's own requests until they are signed. No caller
            can know it.
        callers: Whether callers' requests are signed too, in place of their own credentials.
    """

    def __init__(self, signer: RequestSigner, *, callers: bool) -> None:
        self.mark = b"gateway " + secrets.token_hex(16).encode()
        self.callers = callers
        self._signer = signer

    def signs(self, headers: RawHeaders) -> bool:
        """Return whether a request with these headers is signed."""
        return self.callers or (_AUTHORIZATION, self.mark) in headers

    async def signed(self, method: str, url: URL, headers: RawHeaders, body: bytes | None) -> tuple[URL, RawHeaders]:
        """Return the URL and the headers of a request as they are sent; unchanged if it is not signed."""
        if not self.signs(headers):
            return url, headers
        query = canonical_query(url.raw_query_string)
        url = URL.build(
            scheme=url.scheme, host=url.host or "", port=url.port, path=url.raw_path, query_string=query, encoded=True
        )
        unsigned = [pair for pair in headers if pair[0] != _AUTHORIZATION and not pair[0].startswith(_OF_SIGNATURES)]
        added = await self._signer.headers(method, url, body)
        return url, [*unsigned, *((name.lower().encode(), value.encode()) for name, value in added.items())]


def gateway_signer(settings: GatewaySettings) -> GatewaySigner | None:
    """Return what signs the gateway's requests; None if ``aws_region`` is not set."""
    signer = signer_of(settings)
    if signer is not None:
        return GatewaySigner(signer, callers=settings.aws_sign_callers)
    if settings.aws_sign_callers:
        raise ConfigurationError("[aws_sign_callers] needs [aws_region]: set the region of the OpenSearch domain")
    return None


def changeable(headers: RawHeaders, signer: GatewaySigner | None) -> bool:
    """Return whether the gateway may change a request: it is not signed by its caller, or signed again."""
    signed = any(name == _AUTHORIZATION and value.startswith(_SIGNED) for name, value in headers)
    return not signed or (signer is not None and signer.callers)


def require_changeable(headers: RawHeaders, signer: GatewaySigner | None) -> None:
    """Raise an error for a request whose signature would be wrong after the gateway has changed it."""
    if not changeable(headers, signer):
        raise InvalidRequest(
            "a search with a section [ttc] is changed by the gateway, and its AWS signature is then wrong: sign in "
            "without one, or set [aws_sign_callers] of the gateway"
        )
