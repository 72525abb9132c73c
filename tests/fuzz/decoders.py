"""Every decoder of what comes from a peer, a file or a person: valid examples, and what it may raise for others."""
from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from fusee_mp.core import calls as c
from fusee_mp.core import cron, idfilter, token, where
from fusee_mp.core import records as r
from fusee_mp.core.records import Start
from fusee_mp.duration import to_ms
from fusee_mp.errors import PayloadError, ProtocolError, Rejected, StorageError
from fusee_mp.keeper import protocol as k
from fusee_mp.log import format as log
from fusee_mp.log.reader import split_records
from fusee_mp.payload.failure import decode_failure, encode_failure
from fusee_mp.ring import layout, region
from fusee_mp.ring.region import Region
from fusee_mp.ring.ring import RingReader, RingWriter
from fusee_mp.router.options import split_address
from fusee_mp.sdk.address import parse_address
from fusee_mp.sdk.journals import Journal
from fusee_mp.security import tls
from fusee_mp.security.keys import Material
from fusee_mp.security.token import parse_tokens
from fusee_mp.shardproc.clients import is_read
from fusee_mp.store.archive import Archive, Archived, read_archive
from fusee_mp.wire import messages as m
from fusee_mp.wire import preface
from fusee_mp.wire.frames import Frame, FrameDecoder, decode_frame, first_frame
from fusee_mp.wire.records import pack_records, unpack_records
from tests.core.core_records import FULL, SMALL
from tests.security.certificates import TOKENS, Authority


@dataclass(frozen=True)
class Decoder:
    """`decode` takes any bytes, and returns or raises one of `raises`."""

    name: str
    examples: tuple[bytes, ...]
    decode: Callable[[bytes], Any]
    raises: tuple[type[Exception], ...]

    def holds(self, data: bytes) -> bool:
        """Whether it decoded; any other exception passes through."""
        try:
            self.decode(data)
        except self.raises as error:
            assert str(error), f"{self.name} says nothing about {data!r}"
            return False
        return True


MESSAGES: tuple[m.Message, ...] = (
    m.Ping(7), m.Pong(7), m.Error("busy", "full", {"shard": 2, "x": [1, {"y": None}]}), m.Goodbye("done"), m.Challenge("shop", bytes(32)),
    m.Proof(bytes(32), bytes(32)), m.Hello("w", "1", ["a", "b"], 3, 1, "1.0"), m.Welcome("s", 4, 1000, 5000, 0, None, True, False),
    m.Assign([0, 2]), m.Released(2), m.Revoke(2, "why"), m.Drain(), m.Lease("w", "1", 2), m.Granted(6, 1041, 1000, 0, b"\x01"),
    m.Append(18, 2, pack_records([b"abc", b"de"])), m.Durable(19, 1043, 12), m.Read("fetch", b"\x90", 9), m.Value(b"\xc0"),
    m.Relay(1, 5, pack_records([b"hi"])), m.Deliver(2, 5, pack_records([b"hi"])), m.RelayAck(2, 1, 5), m.Return(), m.Revoked("silent"),
    m.PermitSay("ask", "api", 7, 5, "big", 2), m.PermitAnswer("granted", "api", 7, 0), m.ClientHello("cli", 0), m.ClientWelcome("s", 4),
    m.Call("start", b"\x93\xa1a\xa1b\xc0", False), m.Reply(b"\xc0"), m.Cancel(), m.Part(b"\x01\x02"), m.Adopt(bytes(16)), m.Ring(3, 17),
    m.Ready(), m.Held(2, "w/1", 6), m.Free(2), m.Stop(30_000), m.Status({"shards": [{"shard": 0}]}), m.Keys(),
)
FRAMES = tuple(m.encode(message, 7, 2, 6) for message in MESSAGES)
CALLS: tuple[Any, ...] = (
    c.StartCall("o-1", "checkout", b"{}", "r-1", True, "use_existing", "refuse", 5000, b'{"a": 1}'), c.SignalCall("o-1", "go", b"1", "r"),
    c.CancelCall("o-1", "why", "r"), c.UpdateCall("o-1", "add", b"1", "u", "r"), c.ResetCall("o-1", "step", 2, "r"),
    c.CompleteCall("o-1", 3, "1", 2, b"seal", "ok", b"1", "r"), c.QueryCall("o-1", "items", b""), c.ResultCall("o-1"),
)
KEEPER: tuple[Any, ...] = (
    k.Publish(9), k.Ask(1, "status", b"\x91\xa1a", 5, 1000), k.Checkpoint(2, 10), k.Close(), k.Hello(1, 2, 3), k.Applied(4),
    k.Checkpointed(4), k.Answer(1, b"\xc0"), k.Failure(1, "busy", "full", {"a": 1}), k.Trouble("busy", "a reader"),
)


def _certificate() -> bytes:
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        return Authority(Path(folder)).ca.read_bytes()


def _each(kind: m.Kind) -> Callable[[bytes], Any]:
    return lambda body: m.decode(Frame(kind, 0, 0, 0, body))


def _stream(data: bytes) -> Any:
    """Whole and byte by byte: both give the same frames, or both refuse."""
    found: list[Any] = []
    for pieces in ([data], [data[at:at + 1] for at in range(len(data))]):
        decoder, frames = FrameDecoder(1 << 12), []
        try:
            for piece in pieces:
                frames += decoder.feed(piece)
        except ProtocolError as error:
            frames.append(str(error).partition(" ")[0])
            found.append([frame for frame in frames if isinstance(frame, str)])
        else:
            found.append((frames, decoder.held_bytes))
    assert found[0] == found[1], data
    for frame in found[0][0] if isinstance(found[0], tuple) else ():
        try:
            m.decode(frame)
        except ProtocolError:
            pass


def _keeper(data: bytes) -> Any:
    """Whole and byte by byte, then each body as either side reads it."""
    found: list[Any] = []
    for pieces in ([data], [data[at:at + 1] for at in range(len(data))]):
        frames, bodies = k.Frames(1 << 12), []
        try:
            for piece in pieces:
                bodies += frames.feed(piece)
        except ProtocolError:
            bodies = ["refused"]
        found.append(bodies)
    assert found[0] == found[1] or "refused" in found[0], data
    for body in found[0]:
        for decode in (k.decode_for_keeper, k.decode_for_owner) if body != "refused" else ():
            try:
                decode(body)
            except msgspec.DecodeError:
                pass


def _records(data: bytes) -> Any:
    count = data[0] if data else 0
    try:
        for record in unpack_records(data[1:], count):
            r.read(record)
    except (ProtocolError, ValueError):
        pass


def _ring(data: bytes) -> Any:
    """What a hostile writer may put there: how far it says it is, and the bytes of the ring."""
    attached = Region.attach(region.create(4096, 1), 1)
    try:
        reader = RingReader(attached)
        content = data[8:8 + attached.capacity]
        attached.memory[layout.HEADER_BYTES:layout.HEADER_BYTES + len(content)] = content
        attached.words[layout.WORD_TAIL] = int.from_bytes(data[:8], "little")
        while reader.read() is not None:
            reader.release()
    finally:
        attached.detach()


def _ring_image() -> bytes:
    attached = Region.attach(region.create(4096, 1), 1)
    try:
        writer = RingWriter(attached)
        assert writer.try_write(bytes(10)) and writer.try_write(bytes(layout.piece_max(4096)), more=True) and writer.try_write(bytes(100))
        tail = attached.words[layout.WORD_TAIL]
        return tail.to_bytes(8, "little") + bytes(attached.memory[layout.HEADER_BYTES:layout.HEADER_BYTES + tail])
    finally:
        attached.detach()


def _segment(data: bytes) -> Any:
    header = log.unpack_segment_header(data)
    batch = log.unpack_batch_header(data, 7, 512)
    if batch is not None:
        log.body_fault(batch, memoryview(data)[log.BATCH_HEADER_BYTES:])
    return header


def _batch() -> bytes:
    body = pack_records([r.encode(record) for record in SMALL[:3]])
    packed = log.pack_batch(body, block_bytes=512, salt=7, acked=0, sequence=1, epoch=1, first_lsn=1, records=3, parent=0)
    return packed.header + body + packed.padding


def _in_file(decode: Callable[[Path], Any], name: str) -> Callable[[bytes], Any]:
    def decode_file(data: bytes) -> Any:
        with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
            path = Path(folder, name)
            path.write_bytes(data)
            return decode(path)

    return decode_file


def _written(write: Callable[[Path], Any], name: str) -> bytes:
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        write(Path(folder, name))
        return Path(folder, name).read_bytes()


def _write_archive(path: Path) -> None:
    archive = Archive(path.parent)
    archive.add([Archived(run, "o-1", [5, 9], frame(SMALL[1]) + frame(SMALL[2])) for run in (1, 2)])
    archive.close()


def frame(record: Any) -> bytes:
    return r.frame(r.encode(record))


def _text(decode: Callable[[str], Any]) -> Callable[[bytes], Any]:
    return lambda data: decode(data.decode("utf-8", "surrogateescape"))


def _json(decode: Callable[[Any], Any]) -> Callable[[bytes], Any]:
    def decode_json(data: bytes) -> Any:
        try:
            value = json.loads(data)
        except (ValueError, RecursionError):
            raise Rejected("no JSON") from None
        return decode(value)

    return decode_json


def _write_journal(path: Path) -> None:
    Journal("order-1", 0, (1, 2, 3), (SMALL[1], SMALL[2], SMALL[11])).write(path)


def _layer() -> bytes:
    return idfilter.IdFilter.of([1, 2, 3]).layer(0)[:200]


def _pem(data: bytes) -> Any:
    tls.client_context(data)
    return tls.first_certificate(data)


def _utf8(*texts: str) -> tuple[bytes, ...]:
    return tuple(text.encode() for text in texts)


START = Start(1, 0, "order-1", "checkout", b"null", seed=5)
DECODERS: list[Decoder] = [
    Decoder("preface", tuple(preface.Preface(kind, 2 if kind in (2, 3) else None).encode() for kind in preface.ConnectionKind),
            preface.decode, (ProtocolError,)),
    Decoder("frame", FRAMES, decode_frame, (ProtocolError,)),
    Decoder("first frame", FRAMES, lambda data: first_frame(data, 4096), (ProtocolError,)),
    Decoder("stream of frames", (b"".join(FRAMES[:4]), b"".join(FRAMES[8:14])), _stream, ()),
    *(Decoder(f"message {type(message).__name__}", (m.encode(message)[29:],), _each(message.KIND), (ProtocolError,))
      for message in MESSAGES),
    Decoder("records of a frame", (b"\2" + pack_records([b"abc", b"de"]), b"\0"), _records, ()),
    Decoder("call", tuple(map(c.encode_call, CALLS)), c.decode_call, (msgspec.DecodeError,)),
    Decoder("call of a reader", tuple(map(c.encode_call, CALLS)) + (msgspec.msgpack.encode(["api", None]),),
            lambda data: is_read(m.Call("limit", data)), ()),
    Decoder("keeper protocol", (b"".join(map(k.pack, KEEPER[:5])), b"".join(map(k.pack, KEEPER[5:]))), _keeper, ()),
    Decoder("ring", (_ring_image(),), _ring, (ProtocolError,)),
    Decoder("segment and batch headers", (log.pack_segment_header(log.State.ACTIVE, number=1, salt=7, block_bytes=512), _batch()),
            _segment, ()),
    Decoder("records of a batch", (pack_records([r.encode(record) for record in SMALL[:4]]),), lambda data: list(split_records(data)),
            (StorageError,)),
    Decoder("records of a lease", (pack_records([b"abc", b"de"]),), r.unframe, (ValueError,)),
    Decoder("record", tuple(r.encode(record) for record in SMALL + FULL), r.decode, (msgspec.DecodeError,)),
    Decoder("message between shards", (r.encode_message(r.Message(1, 2, "o-1", r.encode(SMALL[7]))),), r.decode_message,
            (msgspec.DecodeError,)),
    Decoder("layer of the filter of IDs", (_layer(),), lambda data: idfilter.IdFilter.from_layers([data]), ()),
    Decoder("filter language", _utf8(
        '{"status": "open", "type": "checkout"}', '{"amount": {"gte": 60, "lt": 200}}', '{"id": {"prefix": "o-"}}',
        '{"started": {"gt": "2026-01-01T00:00:00Z"}, "x": {"in": [1, "a", null]}}', '{"a": {"exists": true}, "b": {"ne": 1.5}}',
    ), _json(where.parse), (Rejected,)),
    Decoder("cron", _utf8("0 9 * * MON-FRI", "*/5 1,2 L JAN-MAR 7", "@daily", "0 0 29 2 *"), _text(cron.parse), (Rejected,)),
    Decoder("duration", _utf8("250ms", "1.5s", "10m", "3d", "0.0001 h"), _text(to_ms), (Rejected,)),
    Decoder("address", _utf8(
        "host:7410", "[::1]:7410", "unix:/run/fusee.sock?name=me", "h:1?ca=/a.pem&cert=/c&key=/k&token-file=/t&name=n%20x",
    ), _text(parse_address), (Rejected,)),
    Decoder("listening address", _utf8("127.0.0.1:7410", "[::1]:0", ":80", "localhost:65535"), _text(split_address), (Rejected,)),
    Decoder("tokens file", (TOKENS.encode(),), lambda data: parse_tokens(data, "FILE"), (Rejected,)),
    Decoder("completion token", _utf8(token.token(START, "2/1", 3)), _text(token.read_token), (Rejected,)),
    Decoder("keys", (msgspec.msgpack.encode(Material(b"c", b"k", None, b"t")),), lambda data: msgspec.msgpack.decode(data, type=Material),
            (msgspec.DecodeError,)),
    Decoder("certificates", (_certificate(),), _pem, (Rejected,)),
    Decoder("failure", (encode_failure(ExceptionGroup("two", [ValueError(1), KeyError("a")])),), decode_failure, (PayloadError,)),
    Decoder("exported journal", (_written(_write_journal, "j.json"),), _in_file(Journal.read, "j.json"), (StorageError,)),
    Decoder("archive", (_written(_write_archive, "000001.arc"),), _in_file(lambda path: list(read_archive(path.parent)), "000001.arc"),
            (StorageError,)),
]
