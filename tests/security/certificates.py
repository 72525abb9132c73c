"""Certificates and tokens of a made-up company, in files."""
from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

SECRETS = {name: f"{name}-" + "0123456789abcdefghijklmnopqrstuvwxyz" for name in ("workers", "shop", "wall")}
TOKENS = f"""# who may do what
full workers {SECRETS["workers"]}

client shop {SECRETS["shop"]}
  read wall {SECRETS["wall"]}
"""
DAY = datetime.timedelta(days=1)


class Authority:
    """A CA with its own certificate in `ca`; `issue` signs others."""

    def __init__(self, folder: Path, name: str = "ca") -> None:
        self._folder, self._key, self._name = folder, ec.generate_private_key(ec.SECP256R1()), _name(name)
        builder = self._builder(self._name, self._key.public_key()).add_extension(x509.BasicConstraints(True, None), critical=True)
        usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
        self.certificate = builder.add_extension(usage, critical=True).sign(self._key, hashes.SHA256())
        self.ca = folder / f"{name}.pem"
        self.ca.write_bytes(self.certificate.public_bytes(serialization.Encoding.PEM))

    def issue(self, name: str, hosts: tuple[str, ...] = ("127.0.0.1", "::1", "localhost"), days: int = 1) -> tuple[Path, Path]:
        """Paths of a certificate for these hosts and of its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        names = x509.SubjectAlternativeName([_host(host) for host in hosts])
        builder = self._builder(_name(name), key.public_key(), days).add_extension(names, critical=False)
        identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        certificate = builder.add_extension(identifier, critical=False).sign(self._key, hashes.SHA256())
        cert, key_path = self._folder / f"{name}.pem", self._folder / f"{name}.key"
        cert.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        key_path.touch(0o600)
        key_path.write_bytes(key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()))
        return cert, key_path

    def _builder(self, subject: x509.Name, key: ec.EllipticCurvePublicKey, days: int = 1) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        builder = x509.CertificateBuilder().subject_name(subject).issuer_name(self._name).public_key(key)
        builder = builder.serial_number(x509.random_serial_number()).not_valid_before(now - 3 * DAY).not_valid_after(now + days * DAY)
        return builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def write_secret(path: Path, text: str) -> Path:
    """A file that only its user can read."""
    path.touch(0o600)
    path.write_text(text)
    return path


def write_tokens(folder: Path) -> dict[str, Path]:
    """The server's file as `tokens`, and one for each token."""
    files = {name: write_secret(folder / f"{name}.token", line + "\n")
             for line in TOKENS.splitlines() if (words := line.split()) and (name := words[1]) in SECRETS}
    return {**files, "tokens": write_secret(folder / "tokens", TOKENS)}
