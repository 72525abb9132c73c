"""The checksum is that of the package, and is loaded without the rest of it."""
from __future__ import annotations

import subprocess
import sys

import crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fusee_mp import checksum


@given(st.binary(max_size=200), st.integers(0, 0xFFFF_FFFF))
def test_it_is_that_of_the_package(data: bytes, value: int) -> None:
    assert checksum.crc32c(data, value) == crc32c.crc32c(data, value)
    assert checksum.crc32c(memoryview(data)) == crc32c.crc32c(data)


def test_it_is_castagnolis() -> None:
    assert checksum.crc32c(b"123456789") == 0xE3069283


def test_a_package_that_keeps_its_extension_elsewhere_is_loaded_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checksum, "_extension", lambda: None)
    assert checksum._load() is crc32c.crc32c


@pytest.mark.parametrize("module", ["fusee_mp.keeper.main", "fusee_mp.shardproc.main", "fusee_mp.router.main"])
def test_a_process_of_the_server_starts_without_the_rest_of_the_package(module: str) -> None:
    program = f"import sys, {module}; print(*sorted({{'crc32c', 'importlib.metadata'}} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout.strip() == ""
