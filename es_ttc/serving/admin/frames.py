"""Frames of the sidecar protocol: authentication and parsing, for both of its endpoints."""

import io
from typing import TypeVar

import cbor2
from pydantic import BaseModel, SecretStr

from es_ttc.common.validation import Fault, read_object, sentence
from es_ttc.errors import EsTtcError, NotSignedIn
from es_ttc.serving.http.bearer import carries

PROTOCOL_VERSION = 1
MEDIA_TYPE = "application/cbor"

F = TypeVar("F", bound=BaseModel)

_FRAME = "frame"


class ProtocolError(EsTtcError):
    """A frame is invalid: a fault of the plugin, not of the search's caller."""

    status = 400
    type = "ttc_protocol_exception"


class ProtocolVersionError(ProtocolError):
    """A frame has another version of the protocol."""

    type = "ttc_protocol_version_exception"


def require_token(authorization: str, token: SecretStr | None) -> None:
    """Raise an error if a request does not carry the token.

    Raises:
        NotSignedIn: It does not, or no token is configured.
    """
    if token is None:
        raise NotSignedIn("this gateway serves no engines: start it with a sidecar_token (ES_TTC_SIDECAR_TOKEN)")
    if not carries(authorization, token):
        raise NotSignedIn("the token is missing or wrong: give the engine's node the gateway's sidecar_token")


def read_frame(model: type[F], raw: bytes) -> F:
    """Decode and validate a frame from an engine.

    Raises:
        ProtocolVersionError: It has another version.
        ProtocolError: It is not a valid frame.
    """
    stream = io.BytesIO(raw)
    try:
        data = cbor2.load(stream)
    except Exception as error:  # noqa: BLE001 - damaged bytes make the decoder raise nearly anything
        raise ProtocolError(f"the frame is no CBOR, or ends too early: {error}") from None
    if stream.read(1):
        raise ProtocolError("the frame is followed by further bytes")
    if not isinstance(data, dict):
        raise ProtocolError("the frame must be a map with the keys of the protocol")
    version = data.get("version")
    if version != PROTOCOL_VERSION or isinstance(version, bool):
        raise ProtocolVersionError(
            f"the frame is of version [{version!r:.20}] of the protocol, and this gateway speaks [{PROTOCOL_VERSION}]: "
            "use a plugin and a gateway of the same release"
        )
    try:
        return read_object(model, data)
    except Fault as fault:
        raise ProtocolError(sentence(fault, _FRAME)) from None
