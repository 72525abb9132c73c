"""`end_of`: when a certificate expires. `age_of`: whether it is too old, or soon will be."""
from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

SOON: Final = timedelta(days=14)


def end_of(cert: bytes | None) -> str:
    """When a PEM file's first certificate expires, RFC 3339 in UTC; empty without one."""
    if cert is None:
        return ""
    from cryptography import x509  # as below

    return f"{x509.load_pem_x509_certificate(cert).not_valid_after_utc:%Y-%m-%dT%H:%M:%SZ}"


def age_of(cert: bytes, now: datetime) -> str:
    """What is wrong with the time of a PEM file's first certificate, if anything is, or will be within SOON."""
    from cryptography import x509  # 4 MiB that a server without TLS does not need

    found = x509.load_pem_x509_certificate(cert)
    begin, end = found.not_valid_before_utc, found.not_valid_after_utc
    if now < begin:
        return f"the server's certificate is valid from {begin:%Y-%m-%d %H:%M} UTC on: nobody accepts it before"
    if now > end:
        return f"the server's certificate expired at {end:%Y-%m-%d %H:%M} UTC: nobody accepts it. Renew it and send SIGHUP"
    if now > end - SOON:
        return f"the server's certificate expires at {end:%Y-%m-%d %H:%M} UTC: renew it and send SIGHUP"
    return ""
