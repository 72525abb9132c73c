"""What a server is told at its start, checked as a whole before anything is opened."""
from __future__ import annotations

import ipaddress
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from fusee_mp import bounds
from fusee_mp.errors import Rejected
from fusee_mp.log.options import LogOptions
from fusee_mp.security.keys import KeyFiles

DEFAULT_LISTEN: Final = "127.0.0.1:7410"
# `-P`: a module of the user's that stands in the working directory must not be taken for one of ours.
SHARD_PROGRAM: Final = (sys.executable, "-P", "-m", "fusee_mp.shardproc")
UNIX_PATH_BYTES_MAX: Final = 107


@dataclass(frozen=True)
class ServeOptions:
    """A server's settings; those that cannot be raise Rejected.

    `listen`: TCP addresses, port 0 takes a free one. `unix`: path of a Unix socket, empty for none. `shards`: 0 takes what the
    directory has, and for a new one a shard per core, at most 8. `grace_ms`: what leaving workers get when the server stops. `ping_ms`,
    `revoke_ms`: how often a peer is asked, and after how much silence it counts as gone. `silence_ms`: after so long without an answer
    a shard process is killed and started again, after so long without progress of its store it is reported. `program`: what runs a
    shard process; its options follow as JSON. `retention_ms`: how long ended runs are kept, None for ever; `keep_history`: their
    journals too; `archive_history`: then these go to the archive. `payload_bytes_max`: larger payloads are refused, by clients and
    workers where they are given. `tls_cert`, `tls_key`: TCP listeners speak TLS; with `tls_ca` who connects needs a certificate of it.
    `tokens`: a file of tokens, one of which who connects over TCP must prove to have. `insecure`: listen beyond this machine without
    these. `cores`: shard processes stay on these processors, one each in turn. `unix_mode`: mode of the Unix socket's file, which is
    who may use it. `connections`: at most so many at once, in all.
    """

    dir: str
    listen: tuple[str, ...] = (DEFAULT_LISTEN,)
    unix: str = ""
    shards: int = 0
    grace_ms: int = 30_000
    ping_ms: int = 1_000
    revoke_ms: int = 5_000
    silence_ms: int = 10_000
    flush: Literal["auto", "inline", "helper"] = "auto"
    segment_bytes: int = bounds.SEGMENT_BYTES_DEFAULT
    checkpoint_interval_ms: int = 30_000
    cores: tuple[int, ...] = ()
    retention_ms: int | None = None
    keep_history: bool = True
    archive_history: bool = False
    payload_bytes_max: int = bounds.PAYLOAD_BYTES_MAX
    tls_cert: str = ""
    tls_key: str = ""
    tls_ca: str = ""
    tokens: str = ""
    insecure: bool = False
    unix_mode: int = 0o600
    connections: int = bounds.CONNECTIONS_DEFAULT
    program: tuple[str, ...] = SHARD_PROGRAM

    def __post_init__(self) -> None:
        if not self.dir:
            raise Rejected("expected the path of the data directory, found nothing: name it", option="dir", found="")
        _require(bool(self.listen or self.unix), "listen", "an address, or a Unix path in `unix`", self.listen, "nobody could connect")
        _require(0 <= self.shards <= bounds.SHARDS_MAX, "shards", f"1 to {bounds.SHARDS_MAX}, or 0 for the default", self.shards)
        _require(len(os.fsencode(self.unix)) <= UNIX_PATH_BYTES_MAX, "unix", f"at most {UNIX_PATH_BYTES_MAX} bytes", self.unix)
        for name, path in (("dir", self.dir), ("unix", self.unix)):
            if any(ord(letter) < 32 or 0xD800 <= ord(letter) < 0xE000 for letter in path):
                raise Rejected(f"expected a path in UTF-8 without control characters, found {path!r}: it stands in log lines",
                               option=name)
        for name in ("ping_ms", "revoke_ms", "silence_ms", "checkpoint_interval_ms"):
            value = getattr(self, name)
            _require(0 < value <= bounds.DURATION_MS_MAX, name, "more than 0 ms", value)
        _require(self.keep_history or not self.archive_history, "archive_history", "keep_history too", False, "there is nothing to archive")
        kept = self.retention_ms
        _require(kept is None or 0 <= kept <= bounds.DURATION_MS_MAX, "retention_ms", "0 ms or more", kept)
        most, found = bounds.PAYLOAD_BYTES_MAX, self.payload_bytes_max
        _require(0 < found <= most, "payload_bytes_max", f"1 to {most:,} bytes", found)
        _require(0 <= self.grace_ms <= bounds.DURATION_MS_MAX, "grace_ms", "0 ms or more", self.grace_ms)
        _require(self.revoke_ms >= 2 * self.ping_ms, "revoke_ms", f"at least twice ping_ms ({self.ping_ms})", self.revoke_ms)
        _require(0 <= self.unix_mode <= 0o777, "unix_mode", "file mode bits, as in 660", oct(self.unix_mode))
        _require(0 < self.connections <= 1 << 20, "connections", "1 to 1048576", self.connections)
        if self.cores:
            usable = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
            _require(set(self.cores) <= set(usable), "cores", f"processors of {usable}", list(self.cores), "leave it out to let them move")
        LogOptions(**self.log)
        self.key_files()
        for address in self.listen:
            split_address(address)

    @property
    def log(self) -> dict[str, Any]:
        """The log's part, for a shard process. A worker stays awake with it for the flush of a single record."""
        return {"segment_bytes": self.segment_bytes, "flush": self.flush, "awake_processes": 2}

    def key_files(self) -> KeyFiles:
        """Raises Rejected for those that cannot be together."""
        return KeyFiles(self.tls_cert, self.tls_key, self.tls_ca, self.tokens)

    @property
    def unix_path(self) -> Path | None:
        return Path(self.unix) if self.unix else None


def split_address(address: str) -> tuple[str, int]:
    """Host and port of `host:port`, `[v6]:port` or `:port`, which is every interface. Raises Rejected."""
    host, colon, port = address.rpartition(":")
    is_bracketed = host.startswith("[") and host.endswith("]")
    _require(
        bool(colon) and port.isascii() and port.isdigit() and len(port) <= 5 and int(port) < 1 << 16 and (is_bracketed or ":" not in host),
        "listen", "HOST:PORT with a port from 0 to 65535 and an IPv6 address in brackets", address,
    )
    return host[1:-1] if is_bracketed else host, int(port)


def check_exposure(options: ServeOptions, host: str) -> None:
    """Raises Rejected for an address that others can reach while TLS or tokens are missing."""
    if options.insecure or ipaddress.ip_address(host.partition("%")[0]).is_loopback:
        return
    missing = " and no ".join(name for name, there in (("TLS", options.tls_cert), ("tokens", options.tokens)) if not there)
    if missing:
        raise Rejected(
            f"a server that listens on {host}, beyond this machine, needs TLS and tokens, and this one has no {missing}: give"
            " --tls-cert, --tls-key and --tokens, or listen on 127.0.0.1 or a Unix socket. --insecure listens all the same: then whoever"
            " reaches the port may do everything", option="listen", found=host)


def _require(holds: bool, name: str, expected: str, found: object, advice: str = "") -> None:
    if not holds:
        raise Rejected(f"{_option(name)}: expected {expected}, found {found!r}{advice and f': {advice}'}", option=name, found=found)


def _option(name: str) -> str:
    """As the command line has it."""
    return f"--{name.removesuffix('_ms').replace('_', '-')}"
