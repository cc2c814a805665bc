"""Which requests are let in: by the host that they name, the web page that they come from, and the admin token."""

from collections.abc import Callable, Iterable
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from es_ttc.errors import EsTtcError, NotAllowed, NotSignedIn
from es_ttc.serving.http import jsonio
from es_ttc.serving.http.bearer import AdminToken
from es_ttc.serving.http.media_types import PRODUCT_HEADER
from es_ttc.serving.http.proxy import json_headers
from es_ttc.serving.logs import log

_DEFAULT_PORTS = {"http": ":80", "https": ":443"}  # browsers leave them out of `Origin`
_ALWAYS = frozenset({"/_ttc/health", "/_ttc/ready"})  # probes name an address, not a host


class WrongHost(EsTtcError):
    """A request names a host that this gateway does not answer for."""

    status = 421
    type = "ttc_wrong_host_exception"


class Entrance:
    """Passes on requests whose host and origin are allowed, and answers the others.

    Args:
        app: The application.
        hosts: Names that the `Host` header may have, without a port; ``*.example.org`` for all below one. Empty for
            all.
        origins: Values that an `Origin` header may have; empty for all, and below `/_ttc/` for the gateway's own
            address only. Browsers send it, other clients do not.
        admin: The token of requests below `/_ttc/`; None for none.
        is_elasticsearch: Whether the engine is known to be Elasticsearch: each response then names it, as its own do.
    """

    def __init__(
        self,
        app: ASGIApp,
        hosts: Iterable[str],
        origins: Iterable[str],
        admin: AdminToken | None,
        is_elasticsearch: Callable[[], bool],
    ) -> None:
        self._app = app
        self._hosts = tuple(host.lower() for host in hosts)
        self._admin = admin
        self._is_elasticsearch = is_elasticsearch
        self._origins = frozenset(origin.lower().rstrip("/") for origin in origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        send = self._named(send)
        error = self._refusal(scope)
        if error is None:
            if self._admin is not None and scope["path"] not in self._admin.exempt:
                scope["headers"] = self._admin.without(scope["headers"])
            await self._app(scope, receive, send)
            return
        client = scope.get("client") or ("",)
        log.warning("refused", status=error.status, client=client[0], path=scope["path"], reason=str(error))
        body = jsonio.dumps(error.body())
        headers = json_headers(scope["headers"], body)
        if isinstance(error, NotSignedIn):
            headers.append((b"www-authenticate", b'Bearer realm="es-ttc"'))
        await send({"type": "http.response.start", "status": error.status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    def _named(self, send: Send) -> Send:
        """Return a send function that adds the engine's product header to the gateway's own responses."""

        async def named(message: Message) -> None:
            if message["type"] == "http.response.start" and self._is_elasticsearch():
                headers = message.get("headers", [])
                if not any(name == PRODUCT_HEADER[0] for name, _ in headers):
                    message["headers"] = [*headers, PRODUCT_HEADER]
            await send(message)

        return named

    def _refusal(self, scope: Scope) -> EsTtcError | None:
        return self._wrong_name(scope) or self._without_token(scope)

    def _without_token(self, scope: Scope) -> EsTtcError | None:
        if self._admin is None or not _is_ours(scope) or self._admin.admits(scope["path"], scope["headers"]):
            return None
        return NotSignedIn(
            "the token is missing or wrong: send the gateway's admin_token as `Authorization: Bearer`, or as "
            "`x-ttc-token`"
        )

    def _wrong_name(self, scope: Scope) -> EsTtcError | None:
        if scope["path"] in _ALWAYS:
            return None
        if self._hosts and not self._is_own(host := _header(scope, b"host")):
            return WrongHost(f"this gateway does not answer for the host [{host}]: add it to [allowed_hosts]")
        origin, host = _header(scope, b"origin").lower(), _header(scope, b"host").lower()
        own = origin in self._origins if self._origins else not _is_ours(scope) or _is_same(origin, host)
        if origin and not own:
            return NotAllowed(f"requests from pages of [{origin}] are not allowed: add it to [allowed_origins]")
        return None

    def _is_own(self, host: str) -> bool:
        try:
            name = (urlsplit(f"//{host}").hostname or "").lower()
        except ValueError:
            return False
        return any(name == own or (own.startswith("*.") and name.endswith(own[1:])) for own in self._hosts)


def _is_same(origin: str, host: str) -> bool:
    """Return whether a page's origin and a `Host` header name the same host and port."""
    scheme, _, address = origin.partition("://")
    return address == host.removesuffix(_DEFAULT_PORTS.get(scheme, ""))


def _is_ours(scope: Scope) -> bool:
    return str(scope["path"]).startswith("/_ttc/")


def _header(scope: Scope, name: bytes) -> str:
    return next((value.decode("latin-1") for key, value in scope["headers"] if key == name), "")
