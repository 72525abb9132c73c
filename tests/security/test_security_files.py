"""Files of keys and tokens, and what they make together."""
from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from fusee_mp.errors import Rejected
from fusee_mp.router.options import ServeOptions
from fusee_mp.sdk.address import parse_address
from fusee_mp.security.credentials import Credentials
from fusee_mp.security.files import read_file, read_secret
from fusee_mp.security.keys import KeyFiles, Keys, Material
from fusee_mp.security.tls import client_context, server_context
from tests.security.certificates import Authority, write_secret, write_tokens


@pytest.mark.parametrize(("mode", "is_fine"), [
    (0o600, True), (0o400, True), (0o640, True), (0o644, False), (0o660, False), (0o604, False), (0o602, False), (0o601, False)])
def test_a_secret_that_others_can_read_or_the_group_can_write_is_refused(tmp_path: Path, mode: int, is_fine: bool) -> None:
    path = write_secret(tmp_path / "secret", "s")
    path.chmod(mode)
    if is_fine:
        assert read_secret(str(path), "tokens file", 10) == b"s"
    else:
        with pytest.raises(Rejected, match=f"has mode {mode:04o}.*chmod 600 {path}"):
            read_secret(str(path), "tokens file", 10)
    assert read_file(str(path), "CA file", 10) == b"s"


def test_a_file_that_is_none_or_too_large_is_refused_by_name(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe", 0o600)
    large = write_secret(tmp_path / "large", "x" * 11)
    for path, said in (("pipe", "is no file"), ("missing", "No such file"), ("", "Is a dir"), ("a\0b", "null"), ("large", "over 10 bytes")):
        with pytest.raises(Rejected, match=f"the key file .*{said}"):
            read_secret(str(tmp_path / path), "key file", 10)
    assert large.exists()


def test_an_empty_file_of_tokens_or_cas_is_not_the_same_as_none(tmp_path: Path) -> None:
    cert, key = Authority(tmp_path).issue("server")
    empty = write_secret(tmp_path / "empty", "")
    with pytest.raises(Rejected, match="has no token"):
        Keys.of(KeyFiles(tokens=str(empty)).read())
    with pytest.raises(Rejected, match="no certificates in PEM"):
        Keys.of(KeyFiles(str(cert), str(key), str(empty)).read())


def test_certificates_and_keys_that_do_not_fit_are_refused_in_words(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    cert, key = (path.read_bytes() for path in authority.issue("one"))
    _, other = (path.read_bytes() for path in authority.issue("other"))
    for given, said in (((cert, other, None), "does not belong to the certificate"), ((b"x", key, None), "no certificate in PEM"),
                        ((cert, b"x", None), "cannot be used"), ((cert, key, b"x"), "no certificates in PEM"),
                        ((b"-----BEGIN CERTIFICATE-----\nAA!\n-----END CERTIFICATE-----", key, None), "in PEM")):
        with pytest.raises(Rejected, match=said):
            server_context(*given)
    with pytest.raises(Rejected, match="no certificates in PEM"):
        client_context(b"")


def test_an_encrypted_key_is_refused_and_nobody_is_asked_for_its_password(tmp_path: Path) -> None:
    from cryptography.hazmat.primitives import serialization

    cert, key = Authority(tmp_path).issue("server")
    private = serialization.load_pem_private_key(key.read_bytes(), None)
    sealed = private.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(b"secret"))
    with pytest.raises(Rejected, match="the key is encrypted"):
        server_context(cert.read_bytes(), sealed, None)


def test_keys_travel_in_a_memory_file_and_show_no_secret(tmp_path: Path) -> None:
    material = Material(b"c", b"k", None, b"t")
    assert Material.from_descriptor(material.to_descriptor()) == material
    tokens = write_tokens(tmp_path)["tokens"]
    keys = Keys.of(KeyFiles(tokens=str(tokens)).read())
    assert str(keys) == "no TLS, tokens workers (full), shop (client), wall (read)"
    assert keys.tokens is not None
    for shown in (repr(material), repr(keys), str(keys)):
        assert not any(token.secret in shown for token in keys.tokens.values()) and "b'k'" not in shown


@pytest.mark.parametrize(("options", "said"), [
    ({"tls_cert": "c"}, "give both --tls-cert and"), ({"tls_key": "k"}, "give both"),
    ({"tls_ca": "a"}, "give --tls-cert and --tls-key too"),
    ({"unix_mode": 0o1000}, "--unix-mode: expected"), ({"connections": 0}, "connections"),
])
def test_options_that_cannot_be_together_are_refused(options: dict[str, object], said: str) -> None:
    with pytest.raises(Rejected, match=said):
        ServeOptions("data", **options)  # type: ignore[arg-type]


def test_an_address_may_name_the_files_and_arguments_come_first(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    token = write_tokens(tmp_path)["shop"]
    address = parse_address(f"host:1?ca={authority.ca}&token-file={token}&name=me")
    assert (str(address), address.name) == ("host:1", "me")
    assert address.credentials == Credentials(str(authority.ca), token_file=str(token))
    other = write_secret(tmp_path / "other", token.read_text())
    assert address.secured(None, None, None, other).credentials == Credentials(str(authority.ca), token_file=str(other))
    assert parse_address("unix:/p?token-file=/nowhere").secured(None, None, None, None).path == "/p", "it is not asked for there"


@pytest.mark.parametrize(("text", "said"), [
    ("h:1?ca=", 'gives its option "ca" no value'), ("h:1?token=x", 'unknown option "token"'), ("h:1?cert=c&ca=a", "cert= and key="),
    ("h:1?cert=c&key=k", "give ca= too"), ("h:99999999999999999999", "is not host:port"),
])
def test_an_address_with_options_that_make_no_sense_is_refused(text: str, said: str) -> None:
    with pytest.raises(Rejected, match=re.escape(said)):
        parse_address(text)


def test_files_that_cannot_be_used_are_refused_before_anything_is_connected(tmp_path: Path) -> None:
    token = write_tokens(tmp_path)["shop"]
    token.chmod(0o644)
    with pytest.raises(Rejected, match="has mode 0644"):
        parse_address("h:1").secured(None, None, None, token)
    with pytest.raises(Rejected, match="CA file .* cannot be read"):
        parse_address("h:1").secured(tmp_path / "missing", None, None, None)
