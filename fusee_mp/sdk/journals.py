# Journals outside of their directory: what one run recorded, as a value and as a JSON file.
#
#   {"format": 1, "workflow_id": "order-1", "shard": 0, "records": [{"kind": "start", "lsn": 2, "run": 1, "at": .., ..}, ..]}
#
# Each record stands with its kind's word, its LSN, and all its fields under their own names.
# Bytes are text where they are UTF-8, as payloads in clear are, and {"base64": ".."} where they are not, as sealed ones. So a
# file can be read by people, and gives back every byte.
# Rule: a reader refuses what it does not know (another format, kind or field). A journal that was read in part would replay wrongly.
from __future__ import annotations

import os
from base64 import b64decode, b64encode
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, get_args

import msgspec
from msgspec import NODEFAULT, Struct, structs

from fusee_mp.core import records as r
from fusee_mp.errors import StorageError
from fusee_mp.payload.sealing import Payloads
from fusee_mp.sdk.describe import journal_record
from fusee_mp.sdk.types import JournalRecord

FORMAT: Final = 1
_TYPES: Final = {word: kind for kind, word in r.KIND.items() if kind not in r.NOT_IN_JOURNAL}
# A record's own field of this name would hide that of every record.
_OUTSIDE: Final = {"kind": "sends"}
_INSIDE: Final = {outside: inside for inside, outside in _OUTSIDE.items()}


@dataclass(frozen=True, slots=True)
class Journal:
    """Everything that one run recorded, in order. Equal journals replay equally.

    lsns: the place of each record in its shard's log. facts: the records as the log has them; `records` shows them to people.
    """

    workflow_id: str
    shard: int
    lsns: tuple[int, ...]
    facts: tuple[r.RunRecord, ...]

    @property
    def workflow(self) -> str:
        """The name of the workflow, or "" where the journal does not begin with its start."""
        first = self.facts[0] if self.facts else None
        return first.type if isinstance(first, r.Start) else ""

    @property
    def run_number(self) -> int:
        return self.facts[0].run if self.facts else 0

    @property
    def done(self) -> r.Done | None:
        """The record of the run's end, if it has ended."""
        return next((fact for fact in reversed(self.facts) if isinstance(fact, r.Done)), None)

    @property
    def records(self) -> list[JournalRecord]:
        """The records as `describe` shows them: payloads as the values they hold."""
        return [journal_record(fact, lsn, seq) for seq, (fact, lsn) in enumerate(zip(self.facts, self.lsns, strict=True))]

    @classmethod
    def of(cls, workflow_id: str, shard: int, lsns: Sequence[int], data: bytes) -> Journal:
        """The journal that a store holds as framed records. Raises StorageError where they are none."""
        try:
            facts = tuple(r.decode(record) for record in r.unframe(data))
        except ValueError as e:
            said = f'the journal of workflow ID "{workflow_id}" cannot be read: {e}. Restore its directory from a backup'
            raise StorageError(said) from e
        return cls(workflow_id, shard, tuple(lsns), facts)  # type: ignore[arg-type]

    def opened(self, payloads: Payloads) -> Journal:
        """The journal with its payloads in clear. Raises PayloadError, StorageError."""
        return replace(self, facts=tuple(map(payloads.opened, self.facts)))

    def whole(self, payloads: Payloads) -> Journal:
        """The journal with what its directory stores apart. Raises StorageError."""
        return replace(self, facts=tuple(map(payloads.whole, self.facts)))

    def followed_by(self, later: Sequence[tuple[int, r.RunRecord]]) -> Journal:
        """This journal with further records, each with its LSN."""
        lsns, facts = (lsn for lsn, _ in later), (fact for _, fact in later)
        return Journal(self.workflow_id, self.shard, (*self.lsns, *lsns), (*self.facts, *facts))

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the journal to a file, which is replaced whole. Raises StorageError."""
        target = Path(path)
        new = target.with_name(f".{target.name}.{os.getpid()}")
        try:
            new.write_bytes(msgspec.json.format(msgspec.json.encode(self.document()), indent=1) + b"\n")
            new.replace(target)
        except OSError as e:
            new.unlink(missing_ok=True)
            raise StorageError(f"journal file {target} cannot be written: {e}", path=str(target)) from e

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Journal:
        """The journal in a file. Raises StorageError that says what is wrong with it."""
        try:
            data = Path(path).read_bytes()
        except OSError as e:
            raise StorageError(f"journal file {path} cannot be read: {e}", path=str(path)) from e
        try:
            return _journal(msgspec.json.decode(data))
        except (msgspec.MsgspecError, ValueError, RecursionError) as e:
            raise StorageError(f"file {path} is no journal that this version reads: {e}. Export it again", path=str(path)) from e

    def document(self) -> dict[str, Any]:
        """What stands in a file, as plain data."""
        records = [_shown(fact, lsn) for fact, lsn in zip(self.facts, self.lsns, strict=True)]
        return {"format": FORMAT, "workflow_id": self.workflow_id, "shard": self.shard, "records": records}


def _shown(fact: r.RunRecord, lsn: int) -> dict[str, Any]:
    return {"kind": r.KIND[type(fact)], "lsn": lsn, **_fields(fact)}


def _fields(struct: Struct) -> dict[str, Any]:
    return {_OUTSIDE.get(name, name): _value(getattr(struct, name)) for name in struct.__struct_fields__}


def _value(value: Any) -> Any:
    if isinstance(value, Struct):
        return _fields(value)
    if isinstance(value, list | tuple):
        return [_value(item) for item in value]
    if not isinstance(value, bytes):
        return value
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": b64encode(value).decode()}


class _Document(Struct, forbid_unknown_fields=True):
    format: int
    workflow_id: str
    shard: int
    records: list[dict[str, Any]]


def _journal(document: Any) -> Journal:
    found = document.get("format") if isinstance(document, dict) else None
    if found != FORMAT:
        raise ValueError(f'it should have "format": {FORMAT}, and has {found!r:.40}; use the version that wrote it')
    checked = msgspec.convert(document, _Document)
    lsns, facts = [], []
    for place, fields in enumerate(checked.records):
        try:
            lsns.append(msgspec.convert(fields.pop("lsn", None), int))
            facts.append(_fact(fields))
        except (msgspec.MsgspecError, ValueError) as e:
            raise ValueError(f"record {place}: {e}") from None
    if not facts or not isinstance(facts[0], r.Start):
        raise ValueError('its first record should be of the kind "start"')
    return Journal(checked.workflow_id, checked.shard, tuple(lsns), tuple(facts))


def _fact(fields: dict[str, Any]) -> Any:
    word = fields.pop("kind", None)
    kind = _TYPES.get(word) if isinstance(word, str) else None
    if kind is None:
        raise ValueError(f"kind is one of {', '.join(_TYPES)}, not {word!r:.40}")
    return _struct(kind, {_INSIDE.get(name, name): value for name, value in fields.items()})


def _struct(kind: type[Struct], given: dict[str, Any]) -> Any:
    """The struct with these fields, checked as if they had come from the log."""
    return msgspec.convert(_array(kind, given), kind)


def _array(kind: type[Struct], given: dict[str, Any]) -> list[Any]:
    """A struct's fields as the array that its codec takes."""
    tag = kind.__struct_config__.tag
    values: list[Any] = [] if tag is None else [tag]
    for field in structs.fields(kind):
        if field.name in given:
            values.append(_inside(field.type, given.pop(field.name)))
        elif field.required:
            raise ValueError(f'field "{field.name}" is missing')
        else:
            values.append(field.default if field.default is not NODEFAULT else field.default_factory())
    if given:
        raise ValueError(f"field {next(iter(given))!r:.40} is unknown to this version")
    return values


def _inside(type_: Any, value: Any) -> Any:
    kinds = (type_, *get_args(type_))
    nested = next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Struct)), None)
    if isinstance(value, list):
        return [_inside(kinds[-1], item) for item in value]
    if nested is not None and isinstance(value, dict):
        return _array(nested, dict(value))
    if bytes in kinds and isinstance(value, str):
        return value.encode()
    if bytes in kinds and isinstance(value, dict):
        return b64decode(str(value.get("base64")), validate=True)
    return value
