"""TLS at the gateway's own address, with a certificate that may be replaced while the gateway runs."""

import ssl
from pathlib import Path

from es_ttc.errors import ConfigurationError
from es_ttc.serving.logs import log
from es_ttc.settings import GatewaySettings


class ServerCertificate:
    """The certificate of the address, and the context of new connections.

    Raises:
        ConfigurationError: A file cannot be read, or the key is not that of the certificate.
    """

    def __init__(self, certificate: Path, key: Path) -> None:
        self._files = certificate, key
        self._seen = self._times()
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            self.context.load_cert_chain(certificate, key, password=_refuse_password)
        except (OSError, ssl.SSLError, ValueError) as error:
            raise ConfigurationError(
                f"[tls_cert] {certificate} and [tls_key] {key} are no certificate and its key in PEM form: {error}"
            ) from error

    def refresh(self) -> None:
        """Read the files again if they have changed; keep the present certificate while they do not fit each other."""
        times = self._times()
        if times == self._seen:
            return
        certificate, key = self._files
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password=_refuse_password)
            self.context.load_cert_chain(certificate, key, password=_refuse_password)
        except (OSError, ssl.SSLError, ValueError) as error:
            log.warning("new certificate cannot be used yet", problem=str(error))
        else:
            log.info("certificate replaced", certificate=str(certificate))
        self._seen = times

    def _times(self) -> tuple[tuple[int, int] | None, ...]:
        return tuple(_time(file) for file in self._files)


def server_certificate(settings: GatewaySettings) -> ServerCertificate | None:
    """Return the certificate in the settings, or None for plain HTTP.

    Raises:
        ConfigurationError: Only one of both files is set, or they cannot be used.
    """
    certificate, key = settings.tls_cert, settings.tls_key
    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        lacking = "tls_cert" if certificate is None else "tls_key"
        raise ConfigurationError(f"[{lacking}] is missing: TLS needs both the certificate and its key")
    return ServerCertificate(certificate, key)


def _refuse_password() -> str:
    raise ValueError("the key is encrypted; store it without a password, readable by the gateway alone")


def _time(file: Path) -> tuple[int, int] | None:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino
