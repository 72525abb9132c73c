"""A server says when its certificate is of no use any more, or soon will not be."""
from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from fusee_mp.security.expiry import SOON, age_of, end_of
from tests.security.certificates import Authority
from tests.security.secured import Safe


@pytest.mark.parametrize(("days", "words"), [
    (-4, "the server's certificate is valid from"), (0, ""), (25, "the server's certificate expires at"),
    (31, "the server's certificate expired at"),
])
def test_the_time_of_a_certificate_is_looked_at(tmp_path: Path, days: int, words: str) -> None:
    cert, _ = Authority(tmp_path).issue("server", days=30)
    found = age_of(cert.read_bytes(), datetime.now(UTC) + timedelta(days=days))
    assert found.startswith(words) if words else not found
    end = datetime.fromisoformat(end_of(cert.read_bytes()))
    assert timedelta(days=29) < end - datetime.now(UTC) <= timedelta(days=30) and end_of(None) == ""
    assert timedelta(days=5) < SOON < timedelta(days=30)


def test_a_server_that_starts_with_one_that_is_about_to_expire_says_so_in_its_log(tmp_path: Path) -> None:
    safe = Safe(tmp_path)
    with safe.serving(shards=1):
        pass
    assert "WARNING the server's certificate expires at" in safe.log
