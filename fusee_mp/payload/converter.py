# Values of user code as JSON bytes, and back.
#
# A codec belongs to one annotation. What it accepts comes back equal and of the same type; all else is refused where it is sent, with
# the path of the field. Two ways lead through a codec, and both write the same bytes:
# the fast one, when a compiled test finds the value to be exactly what msgspec carries for this type;
# the slow one, through the type's form (forms.py), for everything else: it accepts a little more, and words the refusals.
from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import PurePath
from typing import Any

import msgspec

from fusee_mp.bounds import PAYLOAD_BYTES_MAX
from fusee_mp.errors import PayloadError
from fusee_mp.payload.annotations import Builder
from fusee_mp.payload.forms import Form, NoneType, compile_test, every
from fusee_mp.payload.misfit import Misfit, shown
from fusee_mp.payload.scalars import ForeignForm, NoForm

_IMMUTABLE = frozenset({type(None), bool, int, float, str, bytes})
_NOBODY: Mapping[str, Any] = {}


class Codec:
    """Carries values of one annotation. Make it by `codec_of`, which keeps it."""

    __slots__ = ("_fits", "_form", "_read", "_revises", "_write", "type")

    def __init__(self, type: Any, scope: Mapping[str, Any] = _NOBODY) -> None:
        self.type = None if type is NoneType else type
        self._form = _form(type, scope)
        forms = every(self._form)
        self._revises = any(form.revises for form in forms)
        self._fits: Callable[[Any], bool] = _never
        hooks = {form.type: form for form in forms if isinstance(form, ForeignForm)}
        self._write = msgspec.json.Encoder(enc_hook=_enc_hook(hooks)).encode
        self._read = _reader(type, forms, hooks)
        if self._read is not None:
            self._fits = compile_test(self._form)

    @staticmethod
    def none() -> Codec:
        """Carries None and nothing else."""
        return codec_of(None)

    def encode(self, value: Any, what: str = "value", bytes_max: int = PAYLOAD_BYTES_MAX) -> bytes:
        """The value as JSON. Raises PayloadError, whose path begins with `what`, for a value that would not come back as it is, or is
        larger than `bytes_max`."""
        data = self._encode(value, what, bytes_max)
        if self._revises:
            self._compare(value, self.decode(data, what), data, what)
        return data

    def decode(self, data: bytes | bytearray | memoryview, what: str = "value") -> Any:
        """A fresh value from JSON. Raises PayloadError, whose path begins with `what`, for data that the annotation does not fit."""
        if self._read is not None:
            try:
                return self._read(data)
            except Exception:
                # The slow way either knows what this is (a NaN, a date with its zone), or says what is wrong with it.
                return self._decode_slowly(data, what)
        return self._decode_slowly(data, what)

    def roundtrip(self, value: Any, what: str = "value", bytes_max: int = PAYLOAD_BYTES_MAX) -> tuple[bytes, Any]:
        """The value as JSON, and the copy that anybody who reads it gets; a value that cannot change is its own copy."""
        data = self._encode(value, what, bytes_max)
        if type(value) in _IMMUTABLE and self._fits(value):
            return data, value
        copy = self.decode(data, what)
        if self._revises:
            self._compare(value, copy, data, what)
        return data, copy

    def _encode(self, value: Any, what: str, bytes_max: int) -> bytes:
        try:
            data = self._write(value) if self._fits(value) else self._encode_slowly(value, what)
        except PayloadError:
            raise
        except Exception:
            # A test or writer that fails on the value (an unset attribute, a lone surrogate) leaves the words to the slow way.
            data = self._encode_slowly(value, what)
        if len(data) > bytes_max:
            raise PayloadError(f"{what} is too large: expected at most {bytes_max:,} bytes of JSON, found {len(data):,}. "
                               "Store it elsewhere and send its address.", path=what, limit=bytes_max, size=len(data))
        return data

    def _encode_slowly(self, value: Any, what: str) -> bytes:
        try:
            return msgspec.json.encode(self._form.dump(value))
        except Misfit as misfit:
            raise misfit.error(what) from misfit.__cause__
        except RecursionError:
            raise _too_deep(what) from None
        except Exception as error:
            raise self._class_trouble(what, "a value", error) from error

    def _decode_slowly(self, data: bytes | bytearray | memoryview, what: str) -> Any:
        try:
            return self._form.load(msgspec.json.decode(data))
        except Misfit as misfit:
            raise misfit.error(what) from misfit.__cause__
        except RecursionError:
            raise _too_deep(what) from None
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise PayloadError(f"{what}: expected JSON, found {shown(bytes(data[:40]))} ({error}). Send UTF-8 JSON.", path=what) from None
        except Exception as error:
            raise self._class_trouble(what, "data", error) from error

    def _class_trouble(self, what: str, found: str, error: Exception) -> PayloadError:
        """The code of a user's class raised something of its own, or what is to be in a set or a key has no hash."""
        return PayloadError(f"{what}: expected {self._form.name}, found {found} that it refuses ({type(error).__name__}: {error}). "
                            "Mend the class, or send another value.", path=what)

    def _compare(self, value: Any, copy: Any, data: bytes, what: str) -> None:
        if not _equal(copy, value) and self._encode(copy, what, PAYLOAD_BYTES_MAX) != data:
            raise PayloadError(f"{what}: expected {self._form.name} to come back as it was sent, found {shown(copy)} for {shown(value)}. "
                               "Its __post_init__ or its validators change it again: let them leave a finished value alone.", path=what)

    def __repr__(self) -> str:
        return f"<codec of {self._form.name}>"


def codec_of(type: Any) -> Codec:
    """The codec of an annotation, made once; `Any` is for a value without one."""
    try:
        return _kept(type)
    except TypeError:  # An annotation that cannot be hashed.
        return Codec(type)


@lru_cache(maxsize=4096)
def _kept(type: Any) -> Codec:
    return Codec(type)


def _form(type: Any, scope: Mapping[str, Any]) -> Form:
    try:
        return Builder(scope).form(type)
    except NameError as error:
        return NoForm(type, f"an annotation whose names exist at run time ({error})")
    except (TypeError, AttributeError, RecursionError) as error:
        return NoForm(type, f"an annotation that can be read ({error})")


def _reader(type: Any, forms: list[Form], hooks: Mapping[Any, ForeignForm]) -> Callable[[Any], Any] | None:
    """msgspec's decoder for the type, or None where its JSON would not be ours."""
    if not all(form.native for form in forms):
        return None
    try:
        return msgspec.json.Decoder(type, dec_hook=_dec_hook(hooks)).decode
    except Exception:
        return None


def _enc_hook(hooks: Mapping[Any, ForeignForm]) -> Callable[[Any], Any]:
    def enc_hook(value: Any) -> Any:
        return str(value) if isinstance(value, PurePath) else hooks[type(value)].dump(value)
    return enc_hook


def _dec_hook(hooks: Mapping[Any, ForeignForm]) -> Callable[[Any, Any], Any]:
    def dec_hook(kind: Any, data: Any) -> Any:
        if kind is object:
            return data
        if issubclass(kind, PurePath):
            return kind(data)
        return hooks[kind].load(data)
    return dec_hook


def _equal(copy: Any, value: Any) -> bool:
    try:
        return bool(copy == value)
    except Exception:
        return False  # Its __eq__ has no answer; the bytes decide.


def _never(value: Any) -> bool:
    return False


def _too_deep(what: str) -> PayloadError:
    return PayloadError(f"{what}: expected a value that ends, found one nested too deeply or containing itself. Send it flat.", path=what)
