"""Certificates for tests of TLS, made by the openssl command."""

import shutil
import subprocess
from pathlib import Path

import pytest


def make_certificate(folder: Path) -> tuple[Path, Path]:
    """Return a certificate for 127.0.0.1 that only itself vouches for, and its key, as files in a folder."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("no certificate can be made: there is no openssl command")
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    making = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    naming = ["-subj", "/CN=es-ttc test", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([openssl, *making, *naming, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    return certificate, key
