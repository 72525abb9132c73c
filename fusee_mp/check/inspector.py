# One function that runs as workflow code: what in it breaks replay, and which functions of the file it runs in turn.
#
# What it hands to a step runs elsewhere and is not looked at: the function argument of `ctx.step` and `ctx.completion`, `step(fn)`.
# Rule: no alarm without knowing. A name is only what the file itself says that it is (scopes.py).
from __future__ import annotations

import ast
from collections.abc import Callable, Iterable
from typing import Final, TypeAlias

from fusee_mp.check.banned import rule_of_call, rule_of_name, rule_of_path_call
from fusee_mp.check.scopes import FUNCTIONS, Function, Scope, arguments, own_nodes
from fusee_mp.check.sets import is_unordered, makes_task

_OPERATIONS: Final = {
    "step", "sleep", "wait_for", "wait_until", "child", "start_child", "all", "signal", "cancel", "completion", "continue_as_new",
}
_GATHER: Final = {"asyncio.gather", "asyncio.wait", "asyncio.as_completed"}
_MUTATORS: Final = {
    "append", "appendleft", "extend", "insert", "add", "update", "setdefault", "pop", "popleft", "popitem", "remove", "discard", "clear",
}
_MUTABLE: Final = {"list", "dict", "set", "collections.defaultdict", "collections.deque", "collections.Counter", "collections.OrderedDict"}
_LITERALS = (ast.List, ast.Dict, ast.Set, ast.ListComp, ast.DictComp, ast.SetComp)
_WAITS = (ast.Await, ast.AsyncFor, ast.AsyncWith)
_STEP: Final = {"fusee_mp.step", "fusee_mp.sdk.definitions.step"}

_SAYS: Final = {
    "clock": "{0} reads a clock: another time in every replay", "sleep": "{0} holds up the worker, and a replay sleeps again",
    "random": "{0} draws anew in every replay", "environment": "{0} is another on another machine or day",
    "io": "{0} reaches outside, again in every replay", "input": "{0} blocks the worker, and its answer is not recorded",
    "thread": "{0} leaves the workflow's loop: what happens there is neither ordered nor recorded",
    "loop": "{0} needs a loop of its own, which a workflow cannot have", "hash": "{0}() of a value differs from process to process",
    "print": "{0} prints again in every replay",
}

# Takes the place, the rule and what is wrong.
Report: TypeAlias = Callable[[ast.AST, str, str], None]


class Inspector(ast.NodeVisitor):
    """reached: functions that run as workflow code because this one does."""

    def __init__(self, function: Function, scope: Scope, contexts: dict[ast.AST, set[str]], report: Report) -> None:
        self.function = function
        self.scope = scope
        self.report = report
        self.reached: list[tuple[Function, Scope]] = []
        self._contexts = contexts
        self._step_bodies: set[ast.AST] = set()
        self._nested: list[Function] = []
        self._gathering = False

    def look(self) -> None:
        for statement in self.function.body:
            self.visit(statement)
        for nested in self._nested:
            if nested not in self._step_bodies and not is_step(nested, self.scope):
                self.reached.append((nested, self.scope))

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._nested.append(node)
        self._each((*node.decorator_list, *node.args.defaults, *filter(None, node.args.kw_defaults)))

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self._nested.append(node)
        self._each((*node.decorator_list, *node.args.defaults, *filter(None, node.args.kw_defaults)))

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        """A class has its own code; when that runs, nobody here can tell."""

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self.scope = Scope(node, self.scope)
        self.visit(node.body)
        assert self.scope.parent is not None
        self.scope = self.scope.parent

    def visit_Name(self, node: ast.Name) -> None:
        self._name(node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if not self._name(node):
            self.visit(node.value)

    def _name(self, node: ast.Name | ast.Attribute) -> bool:
        name = self.scope.dotted(node)
        rule = None if name is None else rule_of_name(name)
        if rule is not None:
            self.report(node, rule, _SAYS[rule].format(name))
        return rule is not None

    def visit_Call(self, node: ast.Call) -> None:
        name = self.scope.dotted(node.func)
        rule = rule_of_call(name, node) or self._path_rule(node)
        if rule is not None:
            self.report(node, rule, _SAYS[rule].format(name or ast.unparse(node.func)))
        elif not isinstance(node.func, ast.Name):
            self.visit(node.func)
        self._called(node)
        self._mutates(node)
        self._unordered_calls(node, name)
        outer, self._gathering = self._gathering, name in _GATHER or self._is_operation(node, ("all",))
        self._each(self._own_arguments(node, name))
        self._gathering = outer

    def _path_rule(self, node: ast.Call) -> str | None:
        if not isinstance(node.func, ast.Attribute) or not isinstance(node.func.value, ast.Call):
            return None
        return rule_of_path_call(self.scope.dotted(node.func.value.func), node.func.attr)

    def _called(self, node: ast.Call) -> None:
        """Functions of this file that run as workflow code because of this call."""
        runs = [node.func]
        if isinstance(node.func, ast.Attribute) and node.func.attr in ("on_query", "on_update"):
            runs += [*node.args[1:], *(keyword.value for keyword in node.keywords)]
        for expression in runs:
            found = self.scope.function(expression)
            if found is not None and not is_step(*found):
                self.reached.append(found)

    def _own_arguments(self, node: ast.Call, name: str | None) -> Iterable[ast.AST]:
        """The arguments but for what runs as a step."""
        every: list[ast.expr | ast.keyword] = [*node.args, *node.keywords]
        bodies: list[ast.expr | ast.keyword]
        if name in _STEP:
            bodies = every
        elif self._takes_step(node):
            bodies = [*node.args[1:2], *(keyword for keyword in node.keywords if keyword.arg in ("fn", "send"))]
        elif name == "functools.partial" and node.args and isinstance(node.args[0], ast.Attribute) and node.args[0].attr == "step":
            bodies = [*node.args[2:3]]
        else:
            return every
        return [argument for argument in every if argument not in bodies] + [part for body in bodies for part in self._step_body(body)]

    def _takes_step(self, node: ast.Call) -> bool:
        return isinstance(node.func, ast.Attribute) and node.func.attr in ("step", "completion")

    def _step_body(self, body: ast.expr | ast.keyword) -> Iterable[ast.AST]:
        """Note the functions that run as a step; what is left is evaluated here."""
        body = body.value if isinstance(body, ast.keyword) else body
        found = self.scope.function(body)
        if found is not None:
            self._step_bodies.add(found[0])
        if isinstance(body, ast.Call) and self.scope.dotted(body.func) == "functools.partial" and body.args:
            return [*self._step_body(body.args[0]), *body.args[1:], *body.keywords]
        return [] if isinstance(body, ast.Lambda) or found is not None else [body]

    def _unordered_calls(self, node: ast.Call, name: str | None) -> None:
        first = node.args[0] if node.args else None
        if name == "asyncio.wait" and isinstance(first, (ast.Set, ast.SetComp)) and self._holds_coroutines(first):
            self.report(first, "wait-set", "asyncio.wait on a set of coroutines begins them in the order of the set")
        elif name == "asyncio.as_completed" and first is not None and self._holds_coroutines(self._meant(first)):
            self.report(first, "as-completed", "asyncio.as_completed on coroutines makes tasks in the order of a set, and is refused")
        elif name in _GATHER or self._is_operation(node, ("all",)):
            for argument in node.args:
                self._order_matters(argument.value if isinstance(argument, ast.Starred) else argument)
        if isinstance(node.func, ast.Attribute) and node.func.attr == "pop" and not node.args:
            self._order_matters(node.func.value)

    def _meant(self, expression: ast.expr) -> ast.expr:
        found = self.scope.find(expression.id) if isinstance(expression, ast.Name) else None
        values = found[0].values.get(found[1], []) if found is not None else []
        return values[0] if len(values) == 1 else expression

    def _holds_coroutines(self, expression: ast.expr) -> bool:
        if isinstance(expression, (ast.ListComp, ast.SetComp, ast.GeneratorExp)):
            return isinstance(expression.elt, ast.Call) and not makes_task(expression.elt, self.scope)
        if isinstance(expression, (ast.List, ast.Set, ast.Tuple)):
            return any(isinstance(element, ast.Call) and not makes_task(element, self.scope) for element in expression.elts)
        return False

    def _order_matters(self, expression: ast.expr) -> None:
        if is_unordered(expression, self.scope):
            self.report(expression, "set-order", "the order of a set decides here what the workflow does first")

    def visit_For(self, node: ast.For) -> None:
        if any(isinstance(inner, _WAITS) or (isinstance(inner, ast.Call) and makes_task(inner, self.scope))
               for statement in node.body for inner in own_nodes(statement)):
            self._order_matters(node.iter)
        self.generic_visit(node)

    def visit_ListComp(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp) -> None:
        parts = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
        decides = any(isinstance(inner, ast.Await) or (isinstance(inner, ast.Call) and makes_task(inner, self.scope))
                      for part in parts for inner in own_nodes(part))
        if decides or self._gathering:
            for generator in node.generators:
                self._order_matters(generator.iter)
        self.generic_visit(node)

    visit_SetComp = visit_GeneratorExp = visit_DictComp = visit_ListComp

    def visit_Global(self, node: ast.Global) -> None:
        stored = {inner.id for inner in own_nodes(self.function) if isinstance(inner, ast.Name) and not isinstance(inner.ctx, ast.Load)}
        for name in sorted(stored & set(node.names)):
            self.report(node, "global-write", f'"{name}" is the same variable in all runs, and a replay writes it again')

    def visit_Assign(self, node: ast.Assign) -> None:
        self._each(map(self._written, node.targets))
        self.visit(node.value)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self._each((self._written(node.target), node.value))

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self._written(node.target)
        if node.value is not None:
            self.visit(node.value)

    def visit_Delete(self, node: ast.Delete) -> None:
        self._each(map(self._written, node.targets))

    def _written(self, target: ast.expr) -> ast.expr:
        if isinstance(target, (ast.Subscript, ast.Attribute)) and self._is_shared(target.value, anything=isinstance(target, ast.Attribute)):
            self._shared_write(target, target.value)
        return target

    def _mutates(self, node: ast.Call) -> None:
        if isinstance(node.func, ast.Attribute) and node.func.attr in _MUTATORS and self._is_shared(node.func.value):
            self._shared_write(node, node.func.value)

    def _shared_write(self, node: ast.AST, what: ast.expr) -> None:
        self.report(node, "global-write", f'"{ast.unparse(what)}" is the same object in all runs, and a replay changes it again')

    def _is_shared(self, expression: ast.expr, anything: bool = False) -> bool:
        """A variable of the module that holds something mutable (or anything, or a module)."""
        found = self.scope.find(expression.id) if isinstance(expression, ast.Name) else None
        if found is None or not isinstance(found[0].node, ast.Module):
            return False
        scope, name = found
        if anything:
            return True
        return any(isinstance(value, _LITERALS) or (isinstance(value, ast.Call) and scope.dotted(value.func) in _MUTABLE)
                   for value in scope.values.get(name, ()))

    def visit_Try(self, node: ast.Try | ast.TryStar) -> None:
        waits = any(isinstance(inner, _WAITS) for statement in node.body for inner in own_nodes(statement))
        for handler in node.handlers:
            raises = any(isinstance(inner, ast.Raise) for statement in handler.body for inner in own_nodes(statement))
            if waits and not raises and self._catches_all(handler.type):
                self.report(handler, "swallow", "this swallows the cancellation of the run, and the exception that closes it")
        self.generic_visit(node)

    visit_TryStar = visit_Try

    def _catches_all(self, kind: ast.expr | None) -> bool:
        kinds = kind.elts if isinstance(kind, ast.Tuple) else [kind]
        return any(each is None or self.scope.dotted(each) in ("BaseException", "builtins.BaseException") for each in kinds)

    def visit_Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Call) and self._makes_coroutine(node.value):
            self.report(node.value, "forgotten-await", f"{ast.unparse(node.value.func)}(..) makes a coroutine that nobody awaits")
        self.generic_visit(node)

    def _makes_coroutine(self, call: ast.Call) -> bool:
        if self._is_operation(call, _OPERATIONS) or self.scope.dotted(call.func) == "asyncio.sleep":
            return True
        func = call.func
        if isinstance(func, ast.Call) and isinstance(func.func, ast.Attribute) and func.func.attr == "with_":
            func = func.func.value
            found = self.scope.function(func)
            return found is not None and is_step(*found)
        found = self.scope.function(func)
        return found is not None and (isinstance(found[0], ast.AsyncFunctionDef) or is_step(*found))

    def _is_operation(self, call: ast.Call, names: Iterable[str]) -> bool:
        """A call of one of these on the workflow's context."""
        func = call.func
        if not isinstance(func, ast.Attribute) or func.attr not in names or not isinstance(func.value, ast.Name):
            return False
        found = self.scope.find(func.value.id)
        return found is not None and func.value.id in self._contexts.get(found[0].node, context_names(found[0]))

    def _each(self, nodes: Iterable[ast.AST]) -> None:
        for node in nodes:
            self.visit(node)


def is_step(function: Function, scope: Scope) -> bool:
    """Decorated with @step, in any of its forms."""
    return any(scope.dotted(each.func if isinstance(each, ast.Call) else each) in _STEP for each in function.decorator_list)


def context_names(scope: Scope) -> set[str]:
    """The parameters that are a workflow's context by their name or annotation."""
    if not isinstance(scope.node, FUNCTIONS):
        return set()
    return {argument.arg for argument in arguments(scope.node) if argument.arg == "ctx" or _is_context(argument.annotation, scope)}


def _is_context(annotation: ast.expr | None, scope: Scope) -> bool:
    if isinstance(annotation, ast.Constant):
        return annotation.value in ("Ctx", "fusee_mp.Ctx")
    return annotation is not None and scope.dotted(annotation) in ("fusee_mp.Ctx", "fusee_mp.sdk.ctx.Ctx")
