# What a name means where it stands, as far as one file tells: an import by its full dotted name, a function of this file, or neither.
#
# A name bound in any other way (a parameter, an assignment, a loop) is neither, and hides what is outside. So a parameter called `time`
# raises no alarm. A plain second name, `now = datetime.now`, means what it stands for, when it is bound that once.
from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator
from typing import TypeAlias

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef
Owner: TypeAlias = ast.Module | Function | ast.Lambda
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
DEPTH = 8  # Names defined by names: beyond this it is not worth following.


class Scope:
    """The names that a module, a function or a lambda binds."""

    def __init__(self, node: Owner, parent: Scope | None = None) -> None:
        self.node = node
        self.parent = parent
        self.imports: dict[str, str] = {}
        self.functions: dict[str, Function] = {}
        self.values: dict[str, list[ast.expr]] = {}  # What is assigned to it, where that is plain to see.
        self.bound: set[str] = set()
        self.star = False  # `from fusee_mp import *`
        if not isinstance(node, ast.Module):
            self.bound.update(argument.arg for argument in arguments(node))
        for statement in own_nodes(node):
            self._bind(statement)

    def _bind(self, node: ast.AST) -> None:
        if isinstance(node, ast.Import):
            for alias in node.names:
                first = alias.name.split(".")[0]
                self.imports[alias.asname or first] = alias.name if alias.asname else first
        elif isinstance(node, ast.ImportFrom):
            self.star = self.star or (node.module == "fusee_mp" and node.names[0].name == "*")
            module = "." * node.level + (node.module or "")
            self.imports.update({alias.asname or alias.name: f"{module}.{alias.name}" for alias in node.names})
        elif isinstance(node, FUNCTIONS):
            self.functions[node.name] = node
        elif isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            self.values.setdefault(node.targets[0].id, []).append(node.value)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
            self.values.setdefault(node.target.id, []).append(node.value)
        self.bound.update(_bound_by(node))

    def find(self, name: str) -> tuple[Scope, str] | None:
        """The scope that binds the name; None for a builtin or nothing at all."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.imports or name in scope.functions or name in scope.bound:
                return scope, name
            scope = scope.parent
        return None

    def dotted(self, expression: ast.expr, depth: int = DEPTH) -> str | None:
        """The full name of an import or builtin; None for everything else."""
        if isinstance(expression, ast.Attribute):
            owner = self.dotted(expression.value, depth)
            return None if owner is None else f"{owner}.{expression.attr}"
        return self._dotted_name(expression.id, depth) if isinstance(expression, ast.Name) and depth else None

    def _dotted_name(self, name: str, depth: int) -> str | None:
        found = self.find(name)
        if found is None:
            if any(scope.star for scope in self.chain()):
                return f"fusee_mp.{name}" if not hasattr(builtins, name) else name
            return name if hasattr(builtins, name) else None
        scope, _ = found
        if name in scope.imports:
            return scope.imports[name]
        values = scope.values.get(name, [])
        return scope.dotted(values[0], depth - 1) if len(values) == 1 and name not in scope.functions else None

    def function(self, expression: ast.expr) -> tuple[Function, Scope] | None:
        """The function of this file that an expression names, and the scope that it stands in."""
        found = self.find(expression.id) if isinstance(expression, ast.Name) else None
        if found is None or found[1] not in found[0].functions:
            return None
        return found[0].functions[found[1]], found[0]

    def chain(self) -> Iterator[Scope]:
        scope: Scope | None = self
        while scope is not None:
            yield scope
            scope = scope.parent


def own_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Everything inside, in order, without what is inside of functions, lambdas and classes that are defined there."""
    body = node.body if isinstance(node, (ast.Module, *FUNCTIONS)) else [node.body] if isinstance(node, ast.Lambda) else [node]
    waiting: list[ast.AST] = [*reversed(body)]
    while waiting:
        child = waiting.pop()
        yield child
        if not isinstance(child, (*FUNCTIONS, ast.Lambda, ast.ClassDef)):
            waiting += reversed(list(ast.iter_child_nodes(child)))


def arguments(node: Function | ast.Lambda) -> list[ast.arg]:
    every = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
    return [*every, *filter(None, (node.args.vararg, node.args.kwarg))]


def _bound_by(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Name) and isinstance(node.ctx, (ast.Store, ast.Del)):
        return [node.id]
    if isinstance(node, ast.ClassDef):
        return [node.name]
    if isinstance(node, (ast.ExceptHandler, ast.MatchAs, ast.MatchStar)) and node.name:
        return [node.name]
    return []
