"""A certificate that is its own CA and a token, for benches of secured servers."""
from __future__ import annotations

import datetime
import ipaddress
import secrets
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec


class Secured:
    """Files in a folder: the options of a server, and what a client is given."""

    def __init__(self, folder: Path) -> None:
        self.ca, key, self.token = folder / "server.pem", folder / "server.key", folder / "token"
        for path, data in zip((self.ca, key), _certificate()):
            _write(path, data)
        _write(self.token, f"full bench {secrets.token_urlsafe(32)}\n".encode())
        self.options = (f"--tls-cert={self.ca}", f"--tls-key={key}", f"--tokens={self.token}")
        self.given = {"ca": str(self.ca), "token_file": str(self.token)}


def _write(path: Path, data: bytes) -> None:
    path.touch(0o600)
    path.write_bytes(data)


def _certificate() -> tuple[bytes, bytes]:
    key, name, now = ec.generate_private_key(ec.SECP256R1()), x509.Name([]), datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number(), now, now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    return certificate.public_bytes(pem), key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
