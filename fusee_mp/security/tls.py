# TLS 1.3 and nothing older, without resumption: every connection shows its certificates, and a stolen ticket opens nothing.
"""`server_context` and `client_context`: TLS as both sides use it. `explain`: what a failed handshake means."""
from __future__ import annotations

import hashlib
import os
import re
import ssl
from typing import Final, NoReturn

from fusee_mp.errors import Rejected
from fusee_mp.security.token import NO_CHANNEL

_BLOCK: Final = re.compile(rb"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)


def server_context(cert: bytes, key: bytes, ca: bytes | None) -> ssl.SSLContext:
    """A listener's side; with a CA a certificate that is shown must be of it. Raises Rejected.

    One that is missing is for the door to refuse: it can say so, where a failed handshake of the loop says nothing to the other side.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.options |= ssl.OP_NO_TICKET
    context.num_tickets = 0
    first_certificate(cert)
    with _MemoryFile(cert) as cert_path, _MemoryFile(key) as key_path:
        _show(context, cert_path, key_path)
    if ca is not None:
        _trust(context, ca)
        context.verify_mode = ssl.CERT_OPTIONAL
    return context


def client_context(ca: bytes, cert_path: str = "", key_path: str = "") -> ssl.SSLContext:
    """The side that connects: the server's certificate must be of this CA and for the host that was asked for. Raises Rejected."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    _trust(context, ca)
    if cert_path:
        _show(context, cert_path, key_path)
    return context


def channel_of(certificate: bytes) -> bytes:
    """What a proof is bound to: the server's certificate in DER."""
    digest = hashlib.sha256(certificate).digest()
    assert len(digest) == len(NO_CHANNEL)
    return digest


def first_certificate(pem: bytes) -> bytes:
    """A PEM file's first certificate, in DER: the one that TLS shows. Raises Rejected."""
    found = _BLOCK.search(pem)
    try:
        if found is not None:
            return ssl.PEM_cert_to_DER_cert(found[0].decode("ascii"))
    except ValueError:  # no base64, or no ASCII
        pass
    raise Rejected("the certificate file has no certificate in PEM: it begins with -----BEGIN CERTIFICATE-----")


def _trust(context: ssl.SSLContext, ca: bytes) -> None:
    blocks = _BLOCK.findall(ca)
    try:
        if not blocks:
            raise ValueError("there is no -----BEGIN CERTIFICATE-----")
        context.load_verify_locations(cadata=b"\n".join(blocks).decode("ascii"))
    except (ssl.SSLError, ValueError) as error:
        raise Rejected(f"the CA file has no certificates in PEM that can be read: {error}") from None


def _show(context: ssl.SSLContext, cert_path: str, key_path: str) -> None:
    try:
        context.load_cert_chain(cert_path, key_path, password=_no_password)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise Rejected("the key does not belong to the certificate: give the two that were made together") from None
        raise Rejected(f"certificate and key cannot be used ({error.reason or error}): both must be PEM") from None


def _no_password() -> NoReturn:
    raise Rejected("the key is encrypted: nobody is there to type its password. Give it in clear, in a file that only its user can read")


class _MemoryFile:
    """Bytes with a path, while it is open: `ssl` loads from files alone, and a key that is in memory should not have to go to a disk."""

    def __init__(self, data: bytes) -> None:
        self._descriptor = os.memfd_create("fusee-mp-keys", os.MFD_CLOEXEC)
        os.write(self._descriptor, data)

    def __enter__(self) -> str:
        return f"/proc/self/fd/{self._descriptor}"

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)


# What OpenSSL calls it, and what it means for who connects.
_MEANINGS: Final = (
    ("CERTIFICATE_REQUIRED", "the server asks for a certificate: give cert= and key="),
    ("CERTIFICATE_VERIFY_FAILED",
     "the server's certificate was not accepted ({error}): give the CA that signed it, and the host that it names"),
    ("UNKNOWN_CA", "the server does not accept the certificate of this side: it is not of the CA that the server trusts"),
    ("BAD_CERTIFICATE", "the server does not accept the certificate of this side"),
    ("CERTIFICATE_EXPIRED", "the certificate of this side has expired"),
)


def explain(error: BaseException) -> str:
    """Why TLS failed for good, in our words; empty for what may pass."""
    if not isinstance(error, ssl.SSLError):
        return ""
    found = f"{error.reason} {error}"
    verdict = getattr(error, "verify_message", "")
    return next((meaning.format(error=verdict) for name, meaning in _MEANINGS if name in found), "")
