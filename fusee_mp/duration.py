"""Durations: a timedelta, a number of seconds, or text such as "250ms", "1.5s", "10m", "3d", to whole milliseconds.

Whole milliseconds because timers and records hold nothing finer. A positive duration never becomes zero: it is rounded up, so a
time-out of 100 µs is one of 1 ms and not one that has passed already.
"""
from __future__ import annotations

import re
from datetime import timedelta
from fractions import Fraction
from functools import lru_cache
from typing import TypeAlias

from fusee_mp.bounds import DURATION_MS_MAX
from fusee_mp.errors import Rejected

Duration: TypeAlias = timedelta | float | str

# So many digits are more than any duration has; `int` refuses thousands of them with an error of its own.
_TEXT = re.compile(r"(\d{1,100}(?:\.\d{1,100})?)\s*(ms|s|m|h|d)", re.ASCII)
_UNIT_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_EXAMPLES = 'Use "250ms", "1.5s", "10m", "2h", "3d", a number of seconds, or a timedelta.'


def to_ms(duration: Duration, what: str = "duration") -> int:
    """The duration in whole milliseconds, rounded up.

    Raises Rejected, with an example, for negative, non-finite, over-long and unreadable ones; `what` names the option in the message.
    """
    try:
        return _whole_ms(duration, what)
    except TypeError:  # It cannot be hashed, so it is no duration.
        raise _refusal(what, "a duration", duration) from None


def to_ms_or_none(duration: Duration | None, what: str = "duration") -> int | None:
    """Like `to_ms`, with None for none."""
    return None if duration is None else to_ms(duration, what)


@lru_cache(maxsize=1024, typed=True)
def _whole_ms(duration: Duration, what: str) -> int:
    exact = _exact_ms(duration, what)
    if exact < 0:
        raise _refusal(what, "zero or more", duration)
    if exact > DURATION_MS_MAX:
        raise _refusal(what, f"at most {DURATION_MS_MAX // _UNIT_MS['d']:,} days", duration)
    return -(-exact.numerator // exact.denominator)


def _exact_ms(duration: Duration, what: str) -> Fraction:
    if isinstance(duration, timedelta):
        return Fraction(duration // timedelta(microseconds=1), 1_000)
    if isinstance(duration, str):
        return _text_ms(duration, what)
    if isinstance(duration, bool) or not isinstance(duration, (int, float)):
        raise _refusal(what, "a duration", duration)
    try:
        # A float is read as its shortest decimal: 0.1 is 100 ms, not the 100.0000000000000055 that its bits say, rounded up.
        return Fraction(repr(duration)) * 1_000
    except ValueError:
        raise _refusal(what, "a finite number of seconds", duration) from None


def _text_ms(text: str, what: str) -> Fraction:
    match = _TEXT.fullmatch(text.strip())
    if match is None:
        raise _refusal(what, "a number and a unit (ms, s, m, h, d)", text)
    return Fraction(match[1]) * _UNIT_MS[match[2]]


def _refusal(what: str, expected: str, found: object) -> Rejected:
    shown = repr(found)
    return Rejected(f"{what}: expected {expected}, found {shown if len(shown) < 80 else shown[:77] + '...'}. {_EXAMPLES}", option=what)
