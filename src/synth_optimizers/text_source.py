"""Where a text to improve comes from: reads it, and writes a better one back without changing the rest of the file."""

from __future__ import annotations

import ast
import json
import os
import re
import stat
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from synth_optimizers.atomic_file import write_atomically
from synth_optimizers.errors import ConfigError, SynthOptimizerError, error_of
from synth_optimizers.extras import load

BOM = b"\xef\xbb\xbf"
PATTERNS: dict[Literal["toml", "yaml", "python"], str] = {
    "toml": r"(.+?\.toml):(.+)",
    "yaml": r"(.+?\.ya?ml)#(.+)",
    "python": r"(.+\.py):(\w+)",
}
"""The forms of sources that have a key: the file and the key."""
MARK = "the place of the text, marked by synth-optimizers"
FORMS = "@FILE, FILE.toml:KEY, FILE.yaml#KEY, FILE.py:NAME or module:NAME"


@dataclass(frozen=True, slots=True)
class TextSource:
    """A place in a file that holds a text: the whole file, a key of a TOML or YAML file, or a Python constant.

    >>> source = TextSource.parse("prompts.toml:support.system")
    >>> source.write(source.read() + " Be brief.")
    """

    kind: Literal["file", "toml", "yaml", "python"]
    path: Path
    """The file, as an absolute path."""
    key: str = ""
    """The key or name within the file. Dots separate the keys of nested tables and the numbers of lists, and quotes
    enclose a key with a dot, as in TOML: `"gpt-4.1".system`."""

    @classmethod
    def parse(cls, value: str, base: Path | None = None, *, is_source: bool = False) -> TextSource | None:
        """Return the source that a value names, or `None` for a text. Relative files are below `base`.

        With `is_source`, the value is known to be no text, so its file need not exist. A value that looks like a source
        of another form is an error: it would be improved as a text.
        """
        root = Path.cwd() if base is None else base
        if value.startswith("@") and not value.startswith("@@"):
            return cls("file", root / value[1:])
        found: TextSource | None = None
        for kind, pattern in PATTERNS.items():
            if match := re.fullmatch(pattern, value):
                found = cls(kind, root / match[1], match[2])
        if found is not None and (is_source or found.path.is_file() or not re.search(r"\s", value)):
            return found
        # A configuration names a module by the folder of its file: `/folder/app.prompts:SYSTEM`.
        folder = r"((?:.*/)?)" if is_source else "()"
        if match := re.fullmatch(folder + r"([A-Za-z_][\w.]*):([A-Za-z_]\w*)", value):
            return cls("python", _module_file(match[2], root / match[1], value), match[3])
        if len(value) < 256 and "\n" not in value and value.strip() and (root / value).is_file():
            raise error_of(
                ConfigError, f"the text {value!r} is the name of a file", f"Write @{value} to read the file."
            )
        named = re.fullmatch(r"(\S+\.(?:toml|ya?ml|py|json|txt|md))[:#]\S+", value)
        if named is not None or (is_source and not value.startswith("@@")):
            message = f"the text {value!r} looks like the source of a text, and is none of the known forms"
            raise error_of(ConfigError, message, f"Name a source as {FORMS}; put a text like this into a file.")
        return None

    @classmethod
    def parse_required(cls, value: str) -> TextSource:
        """Return the source that a value of `candidate.sources` names."""
        source = cls.parse(value, is_source=True)
        if source is None:
            message = f"{value!r} in candidate.sources is not the source of a text"
            raise error_of(ConfigError, message, f"Name a source as {FORMS}.")
        return source

    def __str__(self) -> str:
        """Return the source in the form that `parse` and `candidate.sources` accept."""
        if self.kind == "file":
            return f"@{self.path}"
        return f"{self.path}{'#' if self.kind == 'yaml' else ':'}{self.key}"

    def read(self) -> str:
        """Return the text. A missing or different value is an error that names the place."""
        content = self._content()
        return content if self.kind == "file" else _place(self, content).text

    def check(self, text: str) -> None:
        """Check that a text can be written, without writing it."""
        self._replaced(text)

    def write(self, text: str) -> None:
        """Replace the text in its file. Every other byte of the file stays as it is."""
        replaced = self._replaced(text)
        bom = BOM if self.path.read_bytes().startswith(BOM) else b""
        # A link keeps pointing at the file.
        path = self.path.resolve()
        with write_atomically(path) as out:
            os.fchmod(out.fileno(), stat.S_IMODE(path.stat().st_mode))
            out.write(bom + replaced.encode("utf-8", "replace"))

    def _replaced(self, text: str) -> str:
        """Return the content of the file with another text."""
        content = self._content()
        if self.kind == "file":
            # An editor ends a file with a line break, which a proposal may lack.
            replaced = text + "\n" if content.endswith("\n") and not text.endswith("\n") else text
            if "\r\n" in content and "\r\n" not in text:
                replaced = replaced.replace("\n", "\r\n")
        else:
            replaced = _replace(self, content, text)
        return replaced

    def _content(self) -> str:
        try:
            return self.path.read_bytes().removeprefix(BOM).decode()
        except OSError as problem:
            raise _invalid(self, f"the file cannot be read: {problem.strerror}") from problem
        except UnicodeDecodeError as problem:
            raise _invalid(self, f"the file is not UTF-8 (byte {problem.start})") from problem


@dataclass(frozen=True, slots=True)
class _Place:
    """A string in a file: its value, where it is written, and how another value can be written there."""

    text: str
    start: int
    end: int
    forms: Callable[[str], list[str]]
    """Returns spellings of a text, the most readable one first. Not every one fits every text."""


def read_texts(given: Mapping[str, str], base: Path | None = None) -> tuple[dict[str, str], dict[str, str]]:
    """Return texts by name, and the sources of those that come from files."""
    texts, sources = {}, {}
    for name, value in given.items():
        source = TextSource.parse(value, base)
        if source is None:
            texts[name] = value[1:] if value.startswith("@@") else value
        else:
            texts[name], sources[name] = source.read(), str(source)
    return texts, sources


def _place(source: TextSource, content: str) -> _Place:
    return {"toml": _toml_place, "yaml": _yaml_place, "python": _python_place}[source.kind](source, content)


def _replace(source: TextSource, content: str, text: str) -> str:
    """Return the content with another text. A spelling counts if exactly that text is read back."""
    place = _place(source, content)
    forms = place.forms(text)
    if "\r\n" in content:
        forms = [*(form.replace("\n", "\r\n") for form in forms), *forms]
    for form in forms:
        replaced = content[: place.start] + form + content[place.end :]
        try:
            if _place(source, replaced).text == text and _others(source, replaced) == _others(source, content):
                return replaced
        except SynthOptimizerError:
            continue
    raise _invalid(source, "the new text cannot be written there")


def _others(source: TextSource, content: str) -> object:
    """Return everything that the file says besides the text, to check that a replacement changes nothing else."""
    place = _place(source, content)
    if source.kind == "toml":
        import tomllib

        document: Any = tomllib.loads(content)
    elif source.kind == "yaml":
        yaml = _yaml(source)
        return _node_values(yaml, yaml.compose(content, Loader=yaml.SafeLoader), place.start)
    else:
        return ast.dump(ast.parse(content[: place.start] + "0" + content[place.end :]))
    keys = _keys(source)
    parent = document
    for key in keys[:-1]:
        parent = parent[_index(parent, key)]
    parent[_index(parent, keys[-1])] = None
    return document


def _node_values(yaml: Any, node: Any, start: int) -> object:  # noqa: ANN401 (PyYAML has no types here)
    """Return the tags and values of YAML nodes, without the scalar that begins at `start`. Constructs nothing."""
    if isinstance(node, yaml.MappingNode):
        return node.tag, [
            (_node_values(yaml, name, -1), _node_values(yaml, value, start)) for name, value in node.value
        ]
    if isinstance(node, yaml.SequenceNode):
        return node.tag, [_node_values(yaml, value, start) for value in node.value]
    return None if node is None or node.start_mark.index <= start < node.end_mark.index else (node.tag, node.value)


def _count(yaml: Any, node: Any, wanted: object) -> int:  # noqa: ANN401 (PyYAML has no types here)
    """Return how often a YAML node occurs below another. An alias is the node that it names."""
    if isinstance(node, yaml.MappingNode):
        return sum(_count(yaml, value, wanted) for _, value in node.value)
    if isinstance(node, yaml.SequenceNode):
        return sum(_count(yaml, value, wanted) for value in node.value)
    return int(node is wanted)


def _keys(source: TextSource) -> list[str]:
    """Return the keys of a nested value: separated by dots, and in quotes where they contain one, as in TOML."""
    part = r"""("(?:\\.|[^"\\])*"|'[^']*'|[^."'][^.]*)"""
    if re.fullmatch(rf"{part}(?:\.{part})*", source.key) is None:
        raise _invalid(source, f"the key {source.key!r} is not names with dots between them")
    return [_unquoted(source, found) for found in re.findall(part, source.key)]


def _unquoted(source: TextSource, key: str) -> str:
    if key.startswith("'"):
        return key[1:-1]
    try:
        return str(json.loads(key)) if key.startswith('"') else key
    except ValueError as problem:
        raise _invalid(source, f"the key {key} has an escape sequence that is not known") from problem


def _index(parent: object, key: str) -> str | int:
    return int(key) if isinstance(parent, list) else key


def _toml_place(source: TextSource, content: str) -> _Place:
    import tomllib

    try:
        document: Any = tomllib.loads(content)
    except tomllib.TOMLDecodeError as problem:
        raise _invalid(source, f"the file is not valid TOML: {problem}") from problem
    text = document
    for key in _keys(source):
        try:
            text = text[_index(text, key)]
        except (KeyError, IndexError, TypeError, ValueError) as problem:
            raise _invalid(source, f"the file has no key {source.key!r}") from problem
    text = _require_text(source, text)
    # A string is replaced by a mark; the place is right if the mark is what is read under the key.
    for found in re.finditer(
        r"#[^\n]*|'''.*?'''|\"\"\"(?:\\.|.)*?\"\"\"(?!\")|'[^'\n]*'|\"(?:\\.|[^\"\\\n])*\"", content, re.S
    ):
        if found[0].startswith("#"):
            continue
        marked = content[: found.start()] + json.dumps(MARK) + content[found.end() :]
        try:
            value: Any = tomllib.loads(marked)
            for key in _keys(source):
                value = value[_index(value, key)]
        except (tomllib.TOMLDecodeError, KeyError, IndexError, TypeError, ValueError):
            continue
        if value == MARK:
            return _Place(text, found.start(), found.end(), _toml_forms)
    raise _invalid(source, f"the place of {source.key!r} in the file was not found")


def _toml_forms(text: str) -> list[str]:
    escaped = text.replace("\\", "\\\\").replace('"""', '""\\"')
    block = '"""\n' + (escaped[:-1] + '\\"' if escaped.endswith('"') else escaped) + '"""'
    return [*([block] if "\n" in text else []), json.dumps(text, ensure_ascii=False), json.dumps(text)]


def _yaml(source: TextSource) -> Any:  # noqa: ANN401 (a module has no static type)
    return load("yaml", "safe_load", extra="yaml", purpose=f"the text in {source.path.name}")


def _yaml_place(source: TextSource, content: str) -> _Place:
    yaml = _yaml(source)
    try:
        node = yaml.compose(content, Loader=yaml.SafeLoader)
    except yaml.YAMLError as problem:
        raise _invalid(source, f"the file is not valid YAML: {problem}") from problem
    indent, yaml_root = 0, node
    for key in _keys(source):
        if isinstance(node, yaml.MappingNode):
            found = [(name, value) for name, value in node.value if name.value == key]
            indent = found[-1][0].start_mark.column if found else 0
            node = found[-1][1] if found else None
        elif isinstance(node, yaml.SequenceNode) and key.isdigit() and int(key) < len(node.value):
            node = node.value[int(key)]
        else:
            node = None
        if node is None:
            raise _invalid(source, f"the file has no key {source.key!r}")
    if not isinstance(node, yaml.ScalarNode) or node.tag != "tag:yaml.org,2002:str":
        raise _invalid(source, f"{source.key!r} is not a text")
    start, end = node.start_mark.index, node.end_mark.index
    if _count(yaml, yaml_root, node) > 1:
        raise _invalid(source, f"{source.key!r} is used in several places of the file, by an alias")
    # An anchor or a tag stays in front of the text.
    start += len(re.match(r"(?:[&!]\S*\s+)*", content[start:end])[0])  # type: ignore[index]
    tail = "\n" if content[start:end].endswith("\n") else ""

    def forms(text: str) -> list[str]:
        body = text.rstrip("\n")
        trailing = len(text) - len(body)
        lines = "\n".join(" " * (indent + 2) + line if line else "" for line in body.split("\n"))
        chomping = {0: "|-", 1: "|"}.get(trailing, "|+")
        block = f"{chomping}\n{lines}\n" + "\n" * max(trailing - 1, 0)
        quoted = json.dumps(text, ensure_ascii=False) + tail
        return [
            *([block if tail else block.removesuffix("\n")] if "\n" in text else []),
            quoted,
            json.dumps(text) + tail,
        ]

    return _Place(node.value, start, end, forms)


def _python_place(source: TextSource, content: str) -> _Place:
    try:
        tree = ast.parse(content)
    except SyntaxError as problem:
        raise _invalid(source, f"the file is not valid Python: {problem}") from problem
    found: ast.expr | None = None
    for statement in tree.body:
        targets = statement.targets if isinstance(statement, ast.Assign) else []
        if isinstance(statement, ast.AnnAssign) and statement.value is not None:
            targets = [statement.target]
        if any(isinstance(target, ast.Name) and target.id == source.key for target in targets):
            found = statement.value  # type: ignore[attr-defined]
    if found is None:
        raise _invalid(source, f"the file assigns no {source.key!r} at its top level")
    again = [line for line in _bindings(tree, source.key) if line > (found.end_lineno or found.lineno)]
    if again:
        raise _invalid(source, f"{source.key!r} is changed again in line {again[0]}")
    if not isinstance(found, ast.Constant) or not isinstance(found.value, str):
        raise _invalid(source, f"{source.key!r} (line {found.lineno}) is not a plain string")
    lines = re.findall(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+", content)

    def offset(line: int, column: int) -> int:
        # Columns of the syntax tree count bytes.
        return sum(map(len, lines[: line - 1])) + len(lines[line - 1].encode()[:column].decode())

    start = offset(found.lineno, found.col_offset)
    end = offset(found.end_lineno or found.lineno, found.end_col_offset or 0)
    return _Place(found.value, start, end, _python_forms)


def _bindings(tree: ast.Module, name: str) -> list[int]:
    """Return the lines that bind a name of the module, outside of functions and classes."""
    lines: list[int] = []
    nodes: list[ast.AST] = [tree]
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.Name) and node.id == name and not isinstance(node.ctx, ast.Load):
            lines.append(node.lineno)
        if isinstance(node, ast.alias) and name in (node.asname, node.name.partition(".")[0]):
            lines.append(node.lineno)
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
            nodes.extend(ast.iter_child_nodes(node))
    return sorted(lines)


def _python_forms(text: str) -> list[str]:
    escaped = text.replace("\\", "\\\\").replace('"""', '""\\"')
    block = '"""' + (escaped[:-1] + '\\"' if escaped.endswith('"') else escaped) + '"""'
    return [*([block] if "\n" in text else []), json.dumps(text, ensure_ascii=False), repr(text)]


def _module_file(module: str, root: Path, value: str) -> Path:
    """Find the file of a module without importing it."""
    parts = Path(*module.split("."))
    for folder in (root, *map(Path, sys.path)):
        for path in (folder / parts.with_suffix(".py"), folder / parts / "__init__.py"):
            if path.is_file():
                return path.resolve()
    message = f"the text {value!r} names the module {module}, which was not found"
    raise error_of(ConfigError, message, f"Name a source as {FORMS}; a text of this form can be read from a file.")


def _require_text(source: TextSource, value: object) -> str:
    if not isinstance(value, str):
        raise _invalid(source, f"{source.key!r} is not a text, but {type(value).__name__}")
    return value


def _invalid(source: TextSource, problem: str) -> SynthOptimizerError:
    return error_of(ConfigError, f"{source}: {problem}", f"Name a source as {FORMS}.")
