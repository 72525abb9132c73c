# From a path or module name to findings.
#
# Workflow code is what is decorated with @workflow, and every function of the same file that it calls, or that is defined inside of it.
# Functions decorated with @step, and those handed to `ctx.step`, may do as they please. Code of other files is not looked at.
from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Final

from fusee_mp.check.finding import RULES, Finding
from fusee_mp.check.inspector import Inspector, Report, context_names
from fusee_mp.check.scopes import FUNCTIONS, Function, Scope, arguments, own_nodes
from fusee_mp.errors import Rejected

_ALLOW: Final = re.compile(r"#\s*fusee:\s*allow\(([^)]*)\)\s*(.*)")
_WORKFLOW: Final = {"fusee_mp.workflow", "fusee_mp.sdk.definitions.workflow"}
_NOTES: Final = {"print", "allow"}


def check_module(module: str | Path) -> list[Finding]:
    """What breaks replay in a file, in all files of a directory, or in a module or package by its name, in order of place.

    Nothing is imported. Raises Rejected when there is no such file or module, or when it is no Python.
    """
    return [finding for path in _files(module) for finding in check_source(_read(path), str(path))]


def check_source(text: str, file: str = "<text>") -> list[Finding]:
    """The same for text. Raises Rejected for text that is no Python."""
    try:
        return _Look(ast.parse(text, file), text, file).findings()
    except RecursionError:
        raise Rejected(f"{file}: an expression is nested too deeply to be looked at. Take it apart.", file=file) from None
    except (SyntaxError, ValueError) as e:
        line = getattr(e, "lineno", None) or 1
        raise Rejected(f"{file}:{line}: expected Python, found {e.args[0] if e.args else e!r}. Correct it first.", file=file) from None


class _Look:
    def __init__(self, tree: ast.Module, text: str, file: str) -> None:
        self._module = Scope(tree)
        self._file = file
        self._found: set[Finding] = set()
        self._allowed, self._mistakes = _allowances(text, file)
        self._contexts: dict[ast.AST, set[str]] = {}
        self._seen: set[Function] = set()

    def findings(self) -> list[Finding]:
        for function, name in self._workflows():
            context = [argument.arg for argument in arguments(function)[:1]]
            self._contexts[function] = {*context, *context_names(Scope(function, self._module))}
            if not _takes_one_input(function.args):
                report = self._reporter(f'workflow "{name}"')
                report(function, "inputs", f"no module can be imported that has a workflow of ({ast.unparse(function.args)})")
            self._follow(function, self._module, f'workflow "{name}"')
        return sorted([*self._found, *self._mistakes])

    def _workflows(self) -> Iterator[tuple[Function, str]]:
        for node in own_nodes(self._module.node):
            if isinstance(node, FUNCTIONS):
                for decorator in node.decorator_list:
                    call = decorator if isinstance(decorator, ast.Call) else None
                    if self._module.dotted(call.func if call else decorator) in _WORKFLOW:
                        yield node, _text_of(call) or node.name
            elif isinstance(node, ast.Call) and node.args and isinstance(node.func, ast.Call):
                found = self._module.function(node.args[0])
                if found is not None and self._module.dotted(node.func.func) in _WORKFLOW:
                    yield found[0], _text_of(node.func) or found[0].name

    def _follow(self, function: Function, scope: Scope, where: str) -> None:
        waiting = [(function, scope, where)]
        while waiting:
            function, scope, within = waiting.pop()
            if function in self._seen:
                continue
            self._seen.add(function)
            inspector = Inspector(function, Scope(function, scope), self._contexts, self._reporter(within))
            inspector.look()
            waiting += [(each, around, f'"{each.name}", which {where} runs') for each, around in inspector.reached]

    def _reporter(self, where: str) -> Report:
        def report(node: ast.AST, rule: str, says: str) -> None:
            line, end = _lines(node)
            if not any(rule in self._allowed.get(each, ()) for each in range(line, end + 1)):
                column = getattr(node, "col_offset", 0) + 1
                self._found.add(Finding(self._file, line, column, rule, f"{says} (in {where})", RULES[rule], rule not in _NOTES))
        return report


def _takes_one_input(given: ast.arguments) -> bool:
    """A context and at most one input, as @workflow asks for when it is imported."""
    is_asked_for_more = given.vararg is not None or any(default is None for default in given.kw_defaults)
    return not is_asked_for_more and 1 <= len(given.posonlyargs) + len(given.args) <= 2


def _lines(node: ast.AST) -> tuple[int, int]:
    """The lines on which a comment speaks of this node: all of an expression, the first of a block."""
    line: int = getattr(node, "lineno", 1)
    end: int = getattr(node, "end_lineno", None) or line
    return line, line if isinstance(node, (ast.ExceptHandler, *FUNCTIONS)) else end


def _allowances(text: str, file: str) -> tuple[dict[int, set[str]], list[Finding]]:
    """The rules that are allowed on each line, and the comments that say it wrongly."""
    allowed: dict[int, set[str]] = {}
    mistakes = []
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        match = _ALLOW.match(token.string) if token.type == tokenize.COMMENT else None
        if match is None:
            continue
        rules = {rule.strip() for rule in match[1].split(",")}
        fault = next((f'there is no rule "{rule}"; the rules are {", ".join(RULES)}' for rule in sorted(rules) if rule not in RULES),
                     None if match[2].strip() else "a comment that allows something says why")
        if fault is not None:
            mistakes.append(Finding(file, token.start[0], token.start[1] + 1, "allow", fault, RULES["allow"], False))
        else:
            allowed.setdefault(token.start[0], set()).update(rules)
    return allowed, mistakes


def _text_of(call: ast.Call | None) -> str | None:
    """The name that a decorator gives."""
    values = [*call.args[:1], *(keyword.value for keyword in call.keywords if keyword.arg == "name")] if call is not None else []
    return next((value.value for value in values if isinstance(value, ast.Constant) and isinstance(value.value, str)), None)


def _files(module: str | Path) -> list[Path]:
    path = Path(module)
    if path.is_dir() and module != "":
        return sorted(path.rglob("*.py"))
    if path.is_file():
        return [path]
    found = _find(str(module)) if not isinstance(module, Path) and re.fullmatch(r"\w+(\.\w+)*", module) else None
    if found is None:
        raise Rejected(f"expected the path of a Python file or directory, or the name of a module, found {str(module)!r}. Names are looked"
                       " for in the current directory and where Python looks.", module=str(module))
    return sorted(found.parent.rglob("*.py")) if found.name == "__init__.py" else [found]


def _find(name: str) -> Path | None:
    """The file of a module, found without running its parents."""
    places: list[str] = [str(Path.cwd()), *sys.path]
    spec = None
    for index, _ in enumerate(parts := name.split(".")):
        spec = PathFinder.find_spec(".".join(parts[:index + 1]), places)
        if spec is None:
            return None
        places = list(spec.submodule_search_locations or ())
    origin = Path(spec.origin) if spec is not None and spec.origin else None
    return origin if origin is not None and origin.suffix == ".py" else None


def _read(path: Path) -> str:
    try:
        with tokenize.open(path) as file:
            return file.read()
    except (OSError, SyntaxError, UnicodeDecodeError) as e:
        raise Rejected(f"{path}: expected Python text, found what cannot be read: {e}.", file=str(path)) from None
