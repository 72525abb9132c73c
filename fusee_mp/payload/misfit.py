"""A value that does not fit its annotation, while the path to it is still being gathered on the way up."""
from __future__ import annotations

from fusee_mp.errors import PayloadError


class Misfit(Exception):
    """Raised at the value; every container above adds its part of the path by `inside`."""

    def __init__(self, expected: str, found: str, advice: str) -> None:
        super().__init__(expected, found, advice)
        self.expected = expected
        self.found = found
        self.advice = advice
        self.path: list[str] = []

    def inside(self, part: str) -> Misfit:
        self.path.append(part)
        return self

    def error(self, what: str) -> PayloadError:
        path = what + "".join(reversed(self.path))
        return PayloadError(f"{path}: expected {self.expected}, found {self.found}. {self.advice}",
                            path=path, expected=self.expected, found=self.found)


def shown(value: object) -> str:
    """The value's type and the beginning of its repr; whatever its repr does, this answers."""
    kind = type(value).__qualname__
    if value is None:
        return "None"
    try:
        text = repr(value)
    except Exception as error:
        return f"{kind} (its repr raised {type(error).__name__})"
    text = text.encode("utf-8", "backslashreplace").decode()
    return f"{kind} {text if len(text) <= 60 else text[:57] + '...'}"
