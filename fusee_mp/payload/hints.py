"""The types of a class's fields: text resolved, type variables replaced by what the class is made with."""
from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, Generic, Protocol, TypeVar, get_args, get_origin, get_type_hints


def field_types(tp: Any, scope: Mapping[str, Any]) -> dict[str, Any]:
    """All annotations of a class, or of a generic class with arguments, inherited ones first.

    `scope` has further names for classes that were defined inside a function. Raises NameError for a name that stands nowhere.
    """
    origin = get_origin(tp) or tp
    arguments = dict(zip(getattr(origin, "__parameters__", ()), get_args(tp)))
    found: dict[str, Any] = {}
    for base in reversed(origin.__dict__.get("__orig_bases__", origin.__bases__)):
        if (get_origin(base) or base) not in (Generic, Protocol, object) and hasattr(get_origin(base) or base, "__bases__"):
            found |= field_types(base, scope)
    for name, annotation in inspect.get_annotations(origin).items():
        found[name] = resolve(annotation, origin, scope)
    return {name: substitute(annotation, arguments) for name, annotation in found.items()}


def resolve(annotation: Any, owner: Any, scope: Mapping[str, Any]) -> Any:
    """An annotation, or its text, as the type it names where `owner` (a class or function) was defined."""
    module = vars(sys.modules.get(owner.__module__, SimpleNamespace()))
    names = {**scope, owner.__name__: owner, **{p.__name__: p for p in getattr(owner, "__type_params__", ())}}
    try:
        return _evaluate(annotation, module, names)
    except NameError:
        if not isinstance(owner, type):
            raise
        return _evaluate(annotation, module, {**names, **vars(owner)})


def _evaluate(annotation: Any, module: dict[str, Any], names: dict[str, Any]) -> Any:
    holder: Any = SimpleNamespace(__annotations__={"it": annotation})
    return get_type_hints(holder, module, names, include_extras=True)["it"]


def substitute(annotation: Any, arguments: Mapping[Any, Any]) -> Any:
    """The annotation with these type variables replaced."""
    if isinstance(annotation, TypeVar):
        return arguments.get(annotation, annotation)
    parameters = getattr(annotation, "__parameters__", ())
    if not arguments or not parameters or isinstance(annotation, type) and get_origin(annotation) is None:
        return annotation
    return annotation[tuple(arguments.get(parameter, parameter) for parameter in parameters)]
