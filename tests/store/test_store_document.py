"""docs/store.md names what is there."""
from __future__ import annotations

import re
from pathlib import Path

from fusee_mp.core.records import KIND
from fusee_mp.store import Store
from fusee_mp.store.schema import CODES, FORMAT

DOCUMENT = (Path(__file__).parents[2] / "docs" / "store.md").read_text()


def test_the_document_has_every_table_and_column() -> None:
    db = Store.open(":memory:").db
    rows = {names: row for row in re.findall(r"^\| `.*$", DOCUMENT, re.MULTILINE) for names in re.findall(r"`(\w+)`", row.split("|")[1])}
    tables = [name for (name,) in db.execute("select name from sqlite_master where type = 'table'")]
    assert set(tables) <= set(rows)
    for table in tables:
        for _, column, *_ in db.execute(f"pragma table_info({table})"):
            assert f"`{column}`" in rows[table] or column in ("one", "layer"), f"{table}.{column}"


def test_the_document_has_every_status_and_kind_of_record() -> None:
    assert all(f"{code} {name}" in re.sub(r"\s+", " ", DOCUMENT) for name, code in CODES.items())
    assert all(re.search(rf"\b{kind}\b", DOCUMENT) for kind in KIND.values())
    assert f"`pragma user_version`, now {FORMAT}" in DOCUMENT
