"""The number of every kind of frame, grouped by who speaks. Numbers are never reused."""
from __future__ import annotations

from enum import IntEnum


class Kind(IntEnum):
    """What a frame is. docs/protocol.md has each with its direction and bytes."""

    # any connection
    PING = 1
    PONG = 2
    ERROR = 3
    GOODBYE = 4
    CHALLENGE = 5
    PROOF = 6
    RINGS = 7

    # worker and router
    HELLO = 16
    WELCOME = 17
    ASSIGN = 18
    RELEASED = 19
    REVOKE = 20
    DRAIN = 21
    LACKING = 22
    ELSEWHERE = 23

    # worker and shard
    LEASE = 32
    GRANTED = 33
    APPEND = 34
    DURABLE = 35
    READ = 36
    VALUE = 37
    RELAY = 38
    DELIVER = 39
    RELAY_ACK = 40
    RETURN = 41
    REVOKED = 42
    PERMIT_SAY = 43
    PERMIT_ANSWER = 44

    # client and shard; CALL, REPLY and PART also shard and worker
    CLIENT_HELLO = 48
    CLIENT_WELCOME = 49
    CALL = 50
    REPLY = 51
    CANCEL = 52
    PART = 53

    # router and shard process
    ADOPT = 64
    RING = 65
    READY = 66
    HELD = 67
    FREE = 68
    STOP = 69
    STATUS = 70
    KEYS = 71
