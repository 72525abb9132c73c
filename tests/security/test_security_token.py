"""Tokens: their file, and proofs as bytes."""
from __future__ import annotations

import re
import secrets
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fusee_mp.bounds import TOKEN_SECRET_CHARS_MAX, TOKEN_SECRET_CHARS_MIN
from fusee_mp.errors import Denied, ProtocolError, Rejected
from fusee_mp.security.token import NO_CHANNEL, Proving, Scope, Token, decoy, one_token, parse_tokens
from fusee_mp.wire.preface import ConnectionKind, Preface
from tests.security.certificates import SECRETS, TOKENS

PAGE = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text("utf-8")
SHOP = Token(Scope.CLIENT, "shop", SECRETS["shop"])
PREFACE = Preface(ConnectionKind.CLIENT_ANY).encode()


def test_a_tokens_file_gives_each_token_with_its_scope_and_name() -> None:
    found = parse_tokens(TOKENS.encode(), "tokens")
    assert {name: token.scope for name, token in found.items()} == {"workers": Scope.FULL, "shop": Scope.CLIENT, "wall": Scope.READ}
    assert found["shop"] == SHOP


def test_a_scope_includes_those_before_it() -> None:
    assert Scope.READ < Scope.CLIENT < Scope.FULL


@pytest.mark.parametrize(("text", "said"), [
    ("", "has no token"),
    ("# nothing\n\n", "has no token"),
    ("client shop", "line 1: expected three words, SCOPE NAME SECRET, found 2"),
    ("\n\nclient shop x y", "line 3: expected three words"),
    (f"all shop {SECRETS['shop']}", "line 1: the first word is no scope: write full"),
    (f"client sh/op {SECRETS['shop']}", "the second word is no name"),
    (f"client {'n' * 65} {SECRETS['shop']}", "the second word is no name"),
    (f"client shop {'s' * (TOKEN_SECRET_CHARS_MIN - 1)}", f"expected {TOKEN_SECRET_CHARS_MIN} to {TOKEN_SECRET_CHARS_MAX}"),
    (f"client shop {'s' * (TOKEN_SECRET_CHARS_MAX + 1)}", f"found {TOKEN_SECRET_CHARS_MAX + 1} characters"),
    (f"client shop {'s' * 40}!", "the third word is no secret"),
    (TOKENS + f"read shop {'s' * 40}\n", 'line 6: the name "shop" stands there twice'),
    (f"client shöp {SECRETS['shop']}", "byte 9 is not ASCII"),
])
def test_a_tokens_file_that_is_none_is_refused_with_the_line(text: str, said: str) -> None:
    with pytest.raises(Rejected, match=re.escape(said)):
        parse_tokens(text.encode(), "FILE")


def test_who_connects_has_one_token() -> None:
    assert one_token(f"client shop {SHOP.secret}\n".encode(), "FILE") == SHOP
    with pytest.raises(Rejected, match="FILE holds 3 tokens"):
        one_token(TOKENS.encode(), "FILE")


@given(st.text(st.sampled_from("abc 0+/=_-#\n\t!\xe4") , max_size=120))
def test_what_is_said_of_a_bad_file_and_of_a_token_holds_no_secret(text: str) -> None:
    secret = "Q" + secrets.token_hex(20) + "!"
    with pytest.raises(Rejected) as caught:
        parse_tokens(f"client shop {secret} {text}".encode(), "FILE")
    assert secret not in str(caught.value) and secret not in repr(caught.value.fields)
    assert SHOP.secret not in repr(SHOP) and SHOP.secret not in str(SHOP)


def sides(server: Token = SHOP, client: Token = SHOP, channel: bytes = NO_CHANNEL, preface: bytes = PREFACE) -> tuple[Proving, Proving]:
    return Proving(server, PREFACE, NO_CHANNEL), Proving(client, preface, channel)


def test_two_sides_with_the_same_token_convince_each_other() -> None:
    server, client = sides()
    client.check_server(server.of_server(client.nonce), server.nonce)
    server.check_client(client.of_client(server.nonce), client.nonce)


@pytest.mark.parametrize("wrong", [
    {"client": Token(Scope.CLIENT, "shop", "x" * 40)}, {"client": Token(Scope.CLIENT, "shop2", SHOP.secret)}, {"server": decoy("shop")},
    {"channel": b"\1" * 32}, {"preface": Preface(ConnectionKind.CLIENT_SHARD, 0).encode()},
], ids=["secret", "name", "decoy", "channel", "preface"])
def test_another_secret_name_channel_or_preface_convinces_neither(wrong: dict[str, object]) -> None:
    server, client = sides(**wrong)  # type: ignore[arg-type]
    with pytest.raises(Denied, match='this server does not know the token "shop'):
        client.check_server(server.of_server(client.nonce), server.nonce)
    with pytest.raises(Denied, match="does not fit"):
        server.check_client(client.of_client(server.nonce), client.nonce)


def test_a_proof_cannot_be_reflected_or_repeated() -> None:
    server, client = sides()
    with pytest.raises(Denied):
        server.check_client(server.of_server(client.nonce), client.nonce)
    again = Proving(SHOP, PREFACE, NO_CHANNEL)
    with pytest.raises(Denied):
        again.check_client(client.of_client(server.nonce), client.nonce)


def test_a_nonce_of_another_length_is_a_protocol_error() -> None:
    server, _ = sides()
    with pytest.raises(ProtocolError, match="a nonce of 32 bytes, found 31"):
        server.of_server(bytes(31))


def test_the_proofs_of_the_document_are_proofs() -> None:
    block = re.search(r"```proof\n(.*?)```", PAGE, re.DOTALL)
    assert block is not None
    shown = {line[:13].strip(): line[14:] for line in block[1].splitlines()}
    token = Token(Scope.CLIENT, shown["name"], shown["secret"])
    client = Proving(token, bytes.fromhex(shown["preface"]), bytes.fromhex(shown["channel"]))
    client.nonce = bytes.fromhex(shown["client nonce"])
    client.check_server(bytes.fromhex(shown["server proof"]), bytes.fromhex(shown["server nonce"]))
    assert client.of_client(bytes.fromhex(shown["server nonce"])) == bytes.fromhex(shown["client proof"])
