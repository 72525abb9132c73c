# What a worker runs: the workflows of a module, found without being listed anywhere.
"""`load`: a module's workflows, its lifespan and its codec; `load_codec`: a codec alone."""
from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any, NamedTuple

import click

from fusee_mp.cli.faults import BrokenModule
from fusee_mp.errors import Rejected
from fusee_mp.payload.sealing import PayloadCodec, Payloads
from fusee_mp.sdk.definitions import Workflow


class Program(NamedTuple):
    workflows: list[Workflow[Any, Any]]
    lifespan: Callable[[], Any] | None
    codec: PayloadCodec | None


def load(target: str) -> Program:
    """The workflows of `module`, or of `module:attribute`: one workflow, or a list of them. Raises UsageError."""
    name, _, attribute = target.partition(":")
    module = _import(name)
    found = _unique(_listed(target, module, attribute) if attribute else vars(module).values())
    if not found:
        raise click.UsageError(
            f'module "{name}" ({module.__file__}) has no workflow. Put @workflow over an async function in it, or import one.')
    lifespan = getattr(module, "lifespan", None)
    if lifespan is not None and not callable(lifespan):
        raise click.UsageError(f'"lifespan" of module "{name}" is to be an @asynccontextmanager function, found {lifespan!r:.80}.')
    return Program(found, lifespan, _checked_codec(name, "codec", getattr(module, "codec", None)))


def load_codec(target: str) -> PayloadCodec:
    """The codec that is `codec` of a module, or `module:attribute`. Raises UsageError."""
    name, _, attribute = target.partition(":")
    attribute = attribute or "codec"
    codec = _checked_codec(name, attribute, getattr(_import(name), attribute, None))
    if codec is None:
        raise click.UsageError(f'module "{name}" has no "{attribute}": put one there, such as {attribute} = AesGcm({{"k1": key}})')
    return codec


def _checked_codec(module: str, attribute: str, codec: PayloadCodec | None) -> PayloadCodec | None:
    try:
        Payloads(codec)
    except Rejected as e:
        raise click.UsageError(f'"{attribute}" of module "{module}": {e.message}') from None
    return codec


def _import(name: str) -> ModuleType:
    if not all(part.isidentifier() for part in name.split(".")):
        raise click.UsageError(f'"{name}" is not the name of a module, such as shop or shop.orders.{_hint(name)}')
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not (name == error.name or name.startswith(f"{error.name}.")):
            raise _broken(name, error) from None
        raise click.UsageError(f'no module "{name}" is in {os.getcwd()} or installed.{_hint(name)}') from None
    except Exception as error:  # noqa: BLE001  # A module of the user's may raise anything.
        raise _broken(name, error) from None


def _hint(name: str) -> str:
    if "/" not in name and not name.endswith(".py"):
        return ""
    return f" Write it as Python imports it: {name.removesuffix('.py').strip('./').replace('/', '.')}"


def _broken(name: str, error: Exception) -> BrokenModule:
    """The user's own error, with the lines that lead to it: from theirs on."""
    frames = error.__traceback__
    while frames is not None and frames.tb_next is not None and _is_ours(frames.tb_frame.f_code.co_filename):
        frames = frames.tb_next
    return BrokenModule(name, error, "".join(traceback.format_exception(type(error), error, frames)).rstrip())


def _is_ours(filename: str) -> bool:
    return filename == __file__ or filename == importlib.__file__ or filename.startswith("<frozen importlib")


def _listed(target: str, module: ModuleType, attribute: str) -> Iterable[Any]:
    missing = object()
    value: Any = getattr(module, attribute, missing)
    values = [value] if isinstance(value, Workflow) else value
    if isinstance(values, list | tuple) and all(isinstance(one, Workflow) for one in values):
        return values
    found = "nothing of that name" if value is missing else f"{value!r:.80}"
    raise click.UsageError(f'"{target}" is to be a workflow or a list of workflows, found {found}.')


def _unique(values: Iterable[Any]) -> list[Workflow[Any, Any]]:
    """Those that are workflows, each once; a module may know one by several names."""
    return list({id(value): value for value in list(values) if isinstance(value, Workflow)}.values())
