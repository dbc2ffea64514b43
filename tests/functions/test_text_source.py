"""Texts know where they came from, and are written back without changing the rest of the file."""

from pathlib import Path

import pytest

from synth_optimizers import ConfigError, GepaConfig
from synth_optimizers.text_source import TextSource, read_texts

TOML = """# prompts
[x]
"a b" = 1  # one
[support]
system = \"\"\"
Hello
you\"\"\"   # keep
other = "Hello"
list = ["p", 'q']
[models."gpt-4.1"]
"it's \\"new\\"" = "dotted"
'a//b/../c' = "slashed"
"""
YAML = """# prompts
a:
  b: "x"   # keep
  p: |
    line one
    line two

  z: 3
list:
  - one
  - |-
    two
    more
models:
  gpt-4.1:
    "system: it's": dotted
"""
PYTHON = '''"""Doc."""
import os
PROMPT = (
    "a"
    "b é"  # keep
)
X: str = """q
w"""
Y = 3
FORMATTED = f"{Y}"
'''
TEXTS = (
    "short",
    "two\nlines",
    "two\nlines\n",
    'quotes " and """ and \' and \\ back',
    '\nbegins and ends with "breaks"\n\n',
    "key: value # no comment",
    "  indented\nlines",
    "tab\tand é and 🎉",
    'ends with a quote"',
    "\r\nwindows\r\n",
    "a\x00b",
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with one file of each kind."""
    for name, text in (("p.toml", TOML), ("p.yaml", YAML), ("p.py", PYTHON), ("p.txt", "whole\nfile\n")):
        (tmp_path / name).write_bytes(text.encode())
    return tmp_path


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize(
    ("value", "before"),
    [
        ("p.toml:support.system", "Hello\nyou"),
        ("p.toml:support.other", "Hello"),
        ("p.toml:support.list.1", "q"),
        ("p.toml:'support'.\"other\"", "Hello"),
        ('p.toml:models."gpt-4.1"."it\'s \\"new\\""', "dotted"),
        ("p.toml:models.'gpt-4.1'.'a//b/../c'", "slashed"),
        ("p.yaml#a.b", "x"),
        ("p.yaml#a.p", "line one\nline two\n"),
        ("p.yaml#list.0", "one"),
        ("p.yaml#list.1", "two\nmore"),
        ("p.yaml#models.'gpt-4.1'.\"system: it's\"", "dotted"),
        ("p.py:PROMPT", "ab é"),
        ("p:X", "q\nw"),
    ],
)
def test_only_the_text_changes(folder: Path, value: str, before: str, text: str) -> None:
    source = TextSource.parse(value, folder)
    assert source is not None
    original = source.path.read_bytes()
    assert source.read() == before
    source.write(text)
    assert source.read() == text
    assert TextSource.parse_required(str(source)).read() == text
    changed = source.path.read_bytes()
    kept = [line for line in original.splitlines() if b"keep" in line or b"# " in line]
    assert [line for line in kept if line.split(b"#")[-1] not in changed] == []
    source.write(before)
    assert source.read() == before
    others = [TextSource.parse(f"p.toml:support.{name}", folder) for name in ("system", "other")]
    assert [other.read() for other in others if other and other.path != source.path] in ([], ["Hello\nyou", "Hello"])


def test_a_whole_file_keeps_its_mark_its_mode_its_link_and_its_last_line_break(folder: Path) -> None:
    path = folder / "p.txt"
    path.write_bytes(b"\xef\xbb\xbfold\n")
    path.chmod(0o640)
    (folder / "link.txt").symlink_to("p.txt")
    source = TextSource.parse("@link.txt", folder)
    assert source is not None
    assert source.read() == "old\n"
    source.write("new")
    assert path.read_bytes() == b"\xef\xbb\xbfnew\n"
    assert path.stat().st_mode & 0o777 == 0o640
    assert (folder / "link.txt").is_symlink()


def test_lines_of_a_windows_file_keep_their_ends(tmp_path: Path) -> None:
    (tmp_path / "p.py").write_bytes(b'P = "a"\r\nQ = 3\r\n')
    source = TextSource.parse("p.py:P", tmp_path)
    assert source is not None
    source.write("two\nlines")
    assert (tmp_path / "p.py").read_bytes() == b'P = """two\r\nlines"""\r\nQ = 3\r\n'


@pytest.mark.parametrize("value", ["a plain text", "Answer: yes", "@@mention", "", "no colon"])
def test_a_text_is_no_source(value: str) -> None:
    assert TextSource.parse(value) is None
    texts, sources = read_texts({"prompt": value})
    assert (texts["prompt"], sources) == (value.replace("@@", "@"), {})


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("@missing.txt", "cannot be read"),
        ("p.toml:nope", "has no key 'nope'"),
        ("p.toml:support", "is not a text, but dict"),
        ("p.toml:models.gpt-4.1", "has no key 'models.gpt-4.1'"),
        ('p.toml:models."gpt', "is not names with dots between them"),
        ("p.toml:a..b", "is not names with dots between them"),
        ('p.toml:"\\q".b', "has an escape sequence that is not known"),
        ("p.yaml#a", "'a' is not a text"),
        ("p.yaml#a.z", "'a.z' is not a text"),
        ("p.yaml#list.7", "has no key 'list.7'"),
        ("p.py:Y", "(line 9) is not a plain string"),
        ("p.py:FORMATTED", "is not a plain string"),
        ("p.py:NOPE", "assigns no 'NOPE'"),
        ("nomodule:NAME", "was not found"),
        ("changed.py:P", "is changed again in line 2"),
        ("changed.py:Q", "is changed again in line 5"),
        ("alias.yaml#a", "is used in several places of the file"),
        ("sub/alias.yaml:a", "looks like the source of a text"),
        ("p.txt", "is the name of a file"),
        ("broken.toml:a", "not valid TOML"),
        ("broken.yaml#a", "not valid YAML"),
        ("broken.py:a", "not valid Python"),
        ("@binary.txt", "not UTF-8"),
    ],
)
def test_a_source_that_cannot_be_read_is_an_error_with_its_place(folder: Path, value: str, problem: str) -> None:
    for name in ("broken.toml", "broken.yaml", "broken.py"):
        (folder / name).write_text("a = [\n : {", encoding="utf-8")
    (folder / "binary.txt").write_bytes(b"\xff\xfe")
    (folder / "changed.py").write_text('P = "a"\nP += "b"\nQ = "a"\nif P:\n    Q = "c"\n', encoding="utf-8")
    (folder / "alias.yaml").write_text("a: &x text\nb: *x\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"\S") as raised:
        read_texts({"prompt": value}, folder)
    assert problem in str(raised.value)
    assert "FILE.toml:KEY" in raised.value.hint or "@p.txt" in raised.value.hint


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("p.toml:p", '# use """ for it\'s\np = "old"\n', '# use """ for it\'s\np = "new"\n'),
        ("a b.toml:p", 'p = "old"\n', 'p = "new"\n'),
        ("p.yaml#p", "p: &x old\nref: !Ref x\non: {1: 2}\n", 'p: &x "new"\nref: !Ref x\non: {1: 2}\n'),
        ("p.yaml#on.p", "on:\n  p: old\n", 'on:\n  p: "new"\n'),
        ("@p.txt", "old\r\n", "new\r\n"),
    ],
)
def test_unusual_files_keep_everything_else(tmp_path: Path, name: str, content: str, expected: str) -> None:
    path = tmp_path / name.lstrip("@").replace("#", ":").partition(":")[0]
    path.write_bytes(content.encode())
    source = TextSource.parse(name, tmp_path)
    assert source is not None
    assert source.read().strip() == "old"
    source.check("new")
    assert path.read_bytes() == content.encode()
    source.write("new")
    assert path.read_bytes() == expected.encode()


def test_a_configuration_keeps_the_key_of_a_source(tmp_path: Path) -> None:
    key = """p.toml:models."a//b/../c.py:x".'./d'"""
    candidate = {"target_modules": ["prompt"], "sources": {"prompt": key}}
    config = GepaConfig.from_mapping(
        {"run": {"output_dir": str(tmp_path)}, "container": {"url": "http://127.0.0.1:1"}, "candidate": candidate}
    )
    assert config.to_dict()["candidate"]["sources"]["prompt"] == f"{Path.cwd()}/{key}"


def test_a_module_of_a_configuration_is_found_below_its_folder(tmp_path: Path) -> None:
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "prompts.py").write_text('SYSTEM = "old"\n')
    (tmp_path / "gepa.toml").write_text(
        '[container]\nurl = "http://127.0.0.1:1"\n[candidate]\ntarget_modules = ["prompt"]\n'
        '[candidate.sources]\nprompt = "app.prompts:SYSTEM"\n'
    )
    value = GepaConfig.from_toml(tmp_path / "gepa.toml").to_dict()["candidate"]["sources"]["prompt"]
    source = TextSource.parse_required(value)
    assert source == TextSource("python", tmp_path / "app" / "prompts.py", "SYSTEM")
    source.write("new")
    assert (tmp_path / "app" / "prompts.py").read_text() == 'SYSTEM = "new"\n'
