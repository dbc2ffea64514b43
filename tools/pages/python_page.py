"""`docs/reference/python.md`: the public API of the package, from its stubs, signatures and docstrings."""

from __future__ import annotations

import ast
import inspect
import re
from dataclasses import dataclass
from pathlib import Path

from pages import UnsupportedExport
from pages.markdown import code, generated_from, page, table

INTRO = """\
# Python

Everything below is exported by `synth_optimizers`, `synth_optimizers.client` or `synth_optimizers.tracking`. The
package is fully typed. Functions and methods raise the exceptions of [errors](errors.md)."""

# The parts of the page in order: the title and the introduction. A name belongs to the part of the module that it is
# imported from. Functions of the extension are assigned by their names.
PARTS = {
    "run": ("Runs", "A run from a file, a mapping or a run directory."),
    "function_run": ("A function as a task", "[The guide](../guides/functions.md) has the rules of a function."),
    "handle": (
        "Runs in the background",
        "`GepaRun.start` returns a handle. Subscribers follow a run: `execute(subscribers=[...])`.",
    ),
    "result": ("Results", "What `GepaRun.execute` and `RunHandle.wait` return."),
    "scores": ("Scores and gains", ""),
    "status": ("Status", "The state of a run, during the run and after it."),
    "config": ("Configuration", "Every field is described under [configuration](config.md)."),
    "findings": ("Findings", ""),
    "preflight": ("Before a run", "What `GepaRun.plan`, `GepaRun.check` and `check_toml` return."),
    "events": ("Events", "Every type of event is described under [events](events.md)."),
    "workspace": ("Workspaces", "The tables are described under [workspace tables](tables.md)."),
    "queue": ("The queue of a service", "The same queue as the [HTTP service](http.md), without HTTP."),
    "_synth_optimizers": ("Package", "`__version__` is the version of the package."),
    "errors": ("Exceptions", "Codes, exit codes and hints are listed under [errors](errors.md)."),
    "client": (
        "Client of the service",
        "`synth_optimizers.client` needs the extra `client`. `AsyncClient` has the methods of `Client` as coroutines, "
        "and asynchronous iterators in place of iterators.",
    ),
    "tracking": (
        "Trackers",
        "`synth_optimizers.tracking` holds subscribers that forward a run. Each needs the extra of its name.",
    ),
}
NESTED = ("client", "tracking")
ABOUT = (("_run_request", "queue"), ("workspace_", "workspace"), ("events_", "events"), ("config_", "config"))
"""Substrings of function names of the extension, each with its part."""
STUBS = "_synth_optimizers"
TWINS = {"AsyncClient"}
"""Classes with the same methods as another documented class."""

Function = ast.FunctionDef | ast.AsyncFunctionDef
Found = ast.ClassDef | Function | ast.Assign | ast.AnnAssign


def render(package: Path) -> str:
    """Return the page of the package in a directory."""
    modules = _Modules(package)
    names: dict[str, list[str]] = {}
    exported = modules.exported("__init__")
    for name, module in exported.items():
        parts_of = (part for word, part in ABOUT if module == STUBS and word in name)
        names.setdefault(next(parts_of, module), []).append(name)
    for part in NESTED:
        names[part] = list(modules.exported(f"{part}/__init__"))
    for part in sorted(names.keys() ^ PARTS.keys()):
        raise UnsupportedExport(f"python_page.py and the package disagree about the module {part}")
    parts = [INTRO]
    for part, (title, about) in PARTS.items():
        parts += [f"## {title}", about, *_part(modules, part, names[part], exported)]
    source = f"src/{package.name}"
    return page(generated_from("the stubs and docstrings", source=source), *parts)


@dataclass(frozen=True)
class _Modules:
    """Finds where a public name is defined."""

    package: Path

    def exported(self, module: str) -> dict[str, str]:
        """Return the names in `__all__` of a module, each with the module that defines it."""
        tree = self._tree(module)
        listed = next(node for node in tree.body if isinstance(node, ast.Assign) and _target(node) == "__all__")
        sources = _imports(tree)
        names = {
            name: sources.get(name, module.partition("/")[0]).removeprefix(f"{self.package.name}.")
            for name in ast.literal_eval(listed.value)
        }
        # `__all__ += other.__all__` adds the names of another module of the package.
        for node in tree.body:
            if isinstance(node, ast.AugAssign) and isinstance(node.value, ast.Attribute):
                other = ast.unparse(node.value.value)
                names.update(dict.fromkeys(self.exported(other), other))
        return names

    def find(self, name: str, module: str) -> tuple[Found, str]:
        """Return the definition of a name and, for a variable, the docstring below it."""
        file = module.replace(".", "/")
        if (self.package / file / "__init__.py").exists():
            file += "/__init__"
        tree = self._tree(file)
        for place, node in enumerate(tree.body):
            if isinstance(node, ast.ClassDef | Function) and node.name == name:
                return node, ""
            if isinstance(node, ast.Assign | ast.AnnAssign) and _target(node) == name:
                return node, _text(tree.body[place + 1]) if place + 1 < len(tree.body) else ""
        source = _imports(tree).get(name)
        if source is None:
            raise UnsupportedExport(f"{name} is not defined in {module}")
        return self.find(name, source.removeprefix(f"{self.package.name}."))

    def _tree(self, module: str) -> ast.Module:
        path = self.package / f"{module}{'.pyi' if module == STUBS else '.py'}"
        return ast.parse(path.read_text(encoding="utf-8"))


def _imports(tree: ast.Module) -> dict[str, str]:
    return {
        alias.asname or alias.name: node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
    }


def _target(node: ast.Assign | ast.AnnAssign) -> str:
    target = node.targets[0] if isinstance(node, ast.Assign) else node.target
    return target.id if isinstance(target, ast.Name) else ""


def _text(node: ast.stmt) -> str:
    """Return the docstring below a variable or field."""
    is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    return inspect.cleandoc(node.value.value) if is_text else ""  # type: ignore[attr-defined]


def _part(modules: _Modules, part: str, names: list[str], exported: dict[str, str]) -> list[str]:
    if part == "errors":
        classes = [name for name in names if name.endswith("Error")]
        rows = [[code(name), _documentation(_class(modules, name, part), name)] for name in classes]
        parts = [table(["exception", "meaning"], rows)]
        names = [name for name in names if name not in classes]
    else:
        parts = []
    # Names that are not exported at the top level are shown with their module.
    place = f"{part}." if part in NESTED else ""
    for name in names:
        if name in TWINS:
            continue
        node, text = modules.find(name, part if part in NESTED else exported[name])
        if isinstance(node, ast.ClassDef):
            parts += [f"### {name}", *_class_text(node)]
        elif isinstance(node, Function):
            parts += [f"### {place}{name}", code(_signature(name, node)), _documentation(node, name)]
        elif name != "__version__":
            parts += [f"### {place}{name}", text]
    return parts


def _class(modules: _Modules, name: str, module: str) -> ast.ClassDef:
    node, _ = modules.find(name, module)
    if not isinstance(node, ast.ClassDef):
        raise UnsupportedExport(f"{name} is not a class")
    return node


def _class_text(node: ast.ClassDef) -> list[str]:
    fields, methods, made = [], [], ""
    for place, member in enumerate(node.body):
        if isinstance(member, ast.AnnAssign):
            about = _text(node.body[place + 1]) if place + 1 < len(node.body) else ""
            name = _target(member)
            if not name.startswith("_"):
                fields.append([code(name), code(ast.unparse(member.annotation)), " ".join(about.split())])
        elif isinstance(member, Function) and member.name == "__init__" and not _is_internal(member):
            made = code(_signature(node.name, member))
        elif isinstance(member, Function) and not member.name.startswith("_"):
            about = _documentation(member, f"{node.name}.{member.name}")
            if _is_property(member):
                kind = code(ast.unparse(member.returns)) if member.returns else ""
                fields.append([code(member.name), kind, about])
            else:
                methods.append(_bullet(_signature(member.name, member), about))
    head = [_documentation(node, node.name)]
    if made:
        head.insert(0, made)
    return [*head, table(["attribute", "type", "meaning"], fields) if fields else "", "\n".join(methods)]


def _is_property(node: Function) -> bool:
    return any(isinstance(found, ast.Name) and found.id == "property" for found in node.decorator_list)


def _is_internal(node: Function) -> bool:
    """Return whether only the package itself can call a constructor."""
    return any(argument.arg == "native" for argument in node.args.args)


def _documentation(node: ast.ClassDef | Function, name: str) -> str:
    text = ast.get_docstring(node)
    if not text:
        raise UnsupportedExport(f"{name} has no docstring")
    return re.sub(r"^>>> .*(?:\n.+)*(?:\n|$)", lambda found: _fenced(found[0]), text, flags=re.MULTILINE)


def _fenced(session: str) -> str:
    return f"```pycon\n{session.strip()}\n```\n"


def _bullet(signature: str, about: str) -> str:
    return f"* {code(signature)}\n\n" + "\n".join(f"    {line}".rstrip() for line in about.splitlines()) + "\n"


def _signature(name: str, node: Function) -> str:
    arguments = ast.parse(f"def f({ast.unparse(node.args)}): ...").body[0]
    assert isinstance(arguments, ast.FunctionDef)  # noqa: S101 (narrows the type of the parsed node)
    given = arguments.args
    if given.args and given.args[0].arg in ("self", "cls"):
        given.args = given.args[1:]
    returns = "" if node.returns is None or node.name == "__init__" else f" -> {ast.unparse(node.returns)}"
    awaited = "async " if isinstance(node, ast.AsyncFunctionDef) else ""
    return f"{awaited}{name}({ast.unparse(given)}){returns}"
