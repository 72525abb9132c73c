# Which expressions are sets whose order is not the same in every process, as far as one file tells.
#
# A set of tasks is none: tasks of a workflow are hashed by the order in which they were made.
from __future__ import annotations

import ast
from typing import Final

from fusee_mp.check.scopes import DEPTH, FUNCTIONS, Scope, arguments, own_nodes

_KEEP: Final = {"union", "intersection", "difference", "symmetric_difference", "copy"}
_TYPES: Final = {
    "set", "frozenset", "typing.Set", "typing.FrozenSet", "typing.AbstractSet", "collections.abc.Set", "collections.abc.MutableSet",
}
_IN_ORDER_OF: Final = {"list", "tuple", "enumerate", "iter", "zip"}
_IN_ORDER_OF_SECOND: Final = {"map", "filter"}
_TASKS: Final = {"create_task", "ensure_future"}
_OPERATORS = (ast.BitOr, ast.BitAnd, ast.Sub, ast.BitXor)


def is_unordered(expression: ast.expr, scope: Scope, depth: int = DEPTH) -> bool:
    """Iterating over this may give another order in another process."""
    if depth == 0:
        return False
    if isinstance(expression, ast.Set):
        return not all(makes_task(element, scope) for element in expression.elts)
    if isinstance(expression, ast.SetComp):
        return not makes_task(expression.elt, scope)
    if isinstance(expression, ast.BinOp) and isinstance(expression.op, _OPERATORS):
        return is_unordered(expression.left, scope, depth - 1) or is_unordered(expression.right, scope, depth - 1)
    if isinstance(expression, ast.Call):
        return _call(expression, scope, depth)
    return isinstance(expression, ast.Name) and _name(expression.id, scope, depth)


def makes_task(expression: ast.expr, scope: Scope) -> bool:
    if isinstance(expression, ast.Call):
        return isinstance(expression.func, (ast.Attribute, ast.Name)) and _last(expression.func) in _TASKS
    found = scope.find(expression.id) if isinstance(expression, ast.Name) else None
    values = found[0].values.get(found[1], ()) if found is not None else ()
    return any(isinstance(value, ast.Call) and makes_task(value, scope) for value in values)


def _call(call: ast.Call, scope: Scope, depth: int) -> bool:
    name = scope.dotted(call.func)
    if name in ("set", "frozenset"):
        return True
    if name in _IN_ORDER_OF:
        return any(is_unordered(argument, scope, depth - 1) for argument in call.args)
    if name in _IN_ORDER_OF_SECOND:
        return any(is_unordered(argument, scope, depth - 1) for argument in call.args[1:])
    return isinstance(call.func, ast.Attribute) and call.func.attr in _KEEP and is_unordered(call.func.value, scope, depth - 1)


def _name(name: str, scope: Scope, depth: int) -> bool:
    found = scope.find(name)
    if found is None:
        return False
    owner = found[0]
    values = owner.values.get(name, [])
    if isinstance(owner.node, FUNCTIONS) and any(argument.arg == name for argument in arguments(owner.node)):
        annotation = next(argument.annotation for argument in arguments(owner.node) if argument.arg == name)
        return not values and annotation is not None and _is_set_type(annotation, owner)
    return bool(values) and all(is_unordered(value, owner, depth - 1) for value in values) and not _holds_tasks(name, owner)


def _is_set_type(annotation: ast.expr, scope: Scope) -> bool:
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        try:
            annotation = ast.parse(annotation.value, mode="eval").body
        except SyntaxError:
            return False
    if isinstance(annotation, ast.Subscript):
        return _is_set_type(annotation.value, scope) and "Task" not in ast.unparse(annotation.slice)
    return scope.dotted(annotation) in _TYPES


def _holds_tasks(name: str, owner: Scope) -> bool:
    """Tasks are added to it, or it is said to hold them."""
    for node in own_nodes(owner.node):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id == name:
            return "Task" in ast.unparse(node.annotation)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "add" and node.args:
            of_it = isinstance(node.func.value, ast.Name) and node.func.value.id == name
            if of_it and makes_task(node.args[0], owner):
                return True
    return False


def _last(name: ast.Attribute | ast.Name) -> str:
    return name.attr if isinstance(name, ast.Attribute) else name.id
