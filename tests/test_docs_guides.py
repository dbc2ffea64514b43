"""The hand-written pages: their blocks run as printed, with the output they show.

A block runs in a directory that holds the `gepa.toml` of `examples/ticket_router`, with the example's two servers up,
and the service where a page starts one; only ports differ. A block of `text` shows lines of the output of the block
before it, with `…` for parts that change between runs. A block below a comment `not run: ...` needs something that is
not available, such as a key; it is only parsed.
"""

import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from support.commands import check_command
from support.example import EXAMPLE, ROOT, Example, example_config
from support.http_server import serve_calls
from support.markdown import Block, all_blocks, blocks, run_words
from support.service import run_service

from synth_optimizers import GepaConfig, GepaRun

DOCS = ROOT / "docs"
WRITTEN = ("README.md", "start/*.md", "guides/*.md", "how/*.md")
PAGES = [page for pattern in WRITTEN for page in sorted(DOCS.glob(pattern))]
CONTAINER, REFLECTOR, SERVICE = "http://127.0.0.1:9100", "http://127.0.0.1:9101/v1", "http://127.0.0.1:8879"
NOT_RUN = "not run: "


def name_of(page: Path) -> str:
    """Return the name of a page for test ids."""
    return page.relative_to(DOCS).as_posix()


@pytest.fixture(scope="session")
def warm(ticket_router: Example, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the cache of the example's run, so that only new calls reach its servers."""
    place = tmp_path_factory.mktemp("warm")
    GepaRun.from_toml(example_config(place, ticket_router), environ={}).execute()
    return place / "runs/request_cache.sqlite"


class Reader:
    """Executes a page from its beginning to its end."""

    def __init__(self, page: Path, place: Path, addresses: dict[str, str]) -> None:
        self.page = page
        self.place = place
        self.addresses = addresses
        self.told = ""

    def follow(self) -> None:
        """Execute every block of the page."""
        steps: dict[str, Callable[[str], None]] = {
            "sh": self.shell,
            "python": self.python,
            "toml": self.configuration,
            "json": self.document,
            "text": self.output,
        }
        for block in all_blocks(self.page.read_text(encoding="utf-8")):
            assert block.language in steps, f"line {block.line}: a block of {block.language or 'no language'}"
            try:
                if block.note.startswith(NOT_RUN):
                    self.parsed(block)
                else:
                    shown = block.language == "text"
                    steps[block.language](block.code if shown else self.here(block.code))
            except Exception as error:
                raise AssertionError(f"{self.page.name}, line {block.line}: {error}") from error

    def here(self, text: str) -> str:
        """Return a text with the addresses of the running servers."""
        for shown, real in self.addresses.items():
            text = text.replace(shown, real)
        return text

    def shell(self, code: str) -> None:
        """Run shell lines, all of which must succeed."""
        self.tell(run_words(["bash", "-euo", "pipefail", "-c", code], self.place))

    def python(self, code: str) -> None:
        """Run a script."""
        script = self.place / "block.py"
        script.write_text(code, encoding="utf-8")
        self.tell(run_words([sys.executable, script.name], self.place))

    def tell(self, ended: subprocess.CompletedProcess[str]) -> None:
        """Keep the output, with the addresses of the page."""
        self.told = ended.stdout + ended.stderr
        for shown, real in self.addresses.items():
            self.told = self.told.replace(real, shown)

    def document(self, code: str) -> None:
        """Parse a document."""
        json.loads(code)

    def output(self, code: str) -> None:
        """Compare the output on the page with the real one."""
        for line in filter(str.strip, code.splitlines()):
            pattern = r".*".join(re.escape(part.strip()) for part in line.split("…"))
            assert re.search(pattern, self.told), f"{line!r} is not in what was told:\n{self.told}"

    def configuration(self, code: str) -> None:
        """Load a configuration, or a part of one merged into the example's."""
        if named := re.match(r"# (\w[\w.-]*\.toml)\n", code):
            (self.place / named[1]).write_text(code, encoding="utf-8")
        part = tomllib.loads(code)
        whole = tomllib.loads((self.place / "gepa.toml").read_text(encoding="utf-8"))
        for section, values in part.items():
            # Another backend takes other fields, and rows are named in one way only.
            if "backend" in values or section == "seed_candidate":
                whole.pop(section, None)
            if section == "taskset":
                whole.pop("dataset", None)
            merge(whole.setdefault(section, {}), values)
        GepaConfig.from_mapping(whole, environ={})

    def parsed(self, block: Block) -> None:
        """Check a block without running it."""
        match block.language:
            case "sh":
                for line in block.code.replace("\\\n", " ").splitlines():
                    check_command(shlex.split(line, comments=True))
            case "python":
                compile(block.code, self.page.name, "exec")
            case "toml":
                self.configuration(block.code)
            case language:
                assert language in ("json", "text")


def merge(whole: dict[str, Any], part: dict[str, Any]) -> None:
    """Merge a table into another one."""
    for name, value in part.items():
        if isinstance(value, dict) and isinstance(whole.get(name), dict):
            merge(whole[name], value)
        else:
            whole[name] = value


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_the_blocks_of_a_page_run(page: Path, ticket_router: Example, warm: Path, tmp_path: Path) -> None:
    addresses = {CONTAINER: ticket_router.container_url, REFLECTOR: ticket_router.reflector_url}
    config = (EXAMPLE / "gepa.toml").read_text(encoding="utf-8")
    (tmp_path / "runs").mkdir()
    shutil.copy(warm, tmp_path / "runs/request_cache.sqlite")
    reader = Reader(page, tmp_path, addresses)
    (tmp_path / "gepa.toml").write_text(reader.here(config), encoding="utf-8")
    with ExitStack() as open_services:
        if SERVICE in page.read_text(encoding="utf-8"):
            addresses[SERVICE] = open_services.enter_context(run_service(tmp_path)).url
        reader.follow()


def test_every_hand_written_page_has_a_reasonable_length() -> None:
    lengths = {name_of(page): len(page.read_text(encoding="utf-8").splitlines()) for page in PAGES}
    assert {name: length for name, length in lengths.items() if not 20 <= length <= 150} == {}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("```sh\nfalse\n```", "line 1"),
        ("```text\nnever told\n```", "never told"),
        ("```toml\n[gepa]\nminibatch_sise = 3\n```", "minibatch_sise"),
        ("```rust\nfn main() {}\n```", "a block of rust"),
        ("<!-- not run: it has no such option -->\n\n```sh\nsynth-optimizers runs list --rot x\n```", "--rot"),
        ("<!-- not run: no such command -->\n\n```sh\nsynth-optimizers runs lst\n```", "lst"),
        ("<!-- not run: it lacks RUN -->\n\n```sh\nsynth-optimizers runs show\n```", "run"),
        ("<!-- not run: no such target -->\n\n```sh\nmake site-docs\n```", "site-docs"),
    ],
)
def test_errors_on_a_page_are_found(text: str, problem: str, tmp_path: Path) -> None:
    shutil.copy(EXAMPLE / "gepa.toml", tmp_path)
    page = tmp_path / "wrong.md"
    page.write_text(text, encoding="utf-8")
    with pytest.raises(AssertionError, match=re.escape(problem)):
        Reader(page, tmp_path, {}).follow()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the site, which must build without warnings."""
    place = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(place)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)  # noqa: S603
    assert built.returncode == 0, built.stderr
    return place


def test_every_page_is_in_the_site(site: Path) -> None:
    pages = {page.relative_to(DOCS).with_suffix("").as_posix() for page in DOCS.rglob("*.md")}
    expected = {name.removesuffix("README") + "index" if name.endswith("README") else name for name in pages}
    found = {page.relative_to(site).with_suffix("").as_posix() for page in site.rglob("*.html")}
    assert found == expected | {"404", "changelog"}


def test_the_site_loads_nothing_from_other_hosts(site: Path) -> None:
    loads = re.compile(r"""<(?:script|link|img|iframe|source|video|audio)\b[^>]*?\b(?:src|href)=["']?(?:https?:)?//""")
    for page in site.rglob("*.html"):
        assert not loads.search(page.read_text(encoding="utf-8")), page
    for style in site.rglob("*.css"):
        assert not re.search(r"(?:@import|url\()\s*[\"']?(?:https?:)?//", style.read_text(encoding="utf-8")), style
    scripts = [script for folder in ("", "workers") for script in (site / "assets/javascripts" / folder).glob("*.js")]
    assert len(scripts) > 1
    for script in scripts:
        found = re.findall(r"https?://[\w.]+/[^\"'`\s]*(?:\.js\b|polyfill|mermaid)", script.read_text(encoding="utf-8"))
        assert found == [], script


def test_escaped_pipes_in_tables_are_rendered(site: Path) -> None:
    text = (site / "reference/python.html").read_text(encoding="utf-8")
    assert "<code>str | None</code>" in text
    assert "&#124;" not in text
    assert "\\|" not in text


def test_no_page_of_the_site_has_an_unrendered_diagram(site: Path) -> None:
    assert [page for page in site.rglob("*.html") if 'class="mermaid"' in page.read_text(encoding="utf-8")] == []


def test_a_program_with_several_texts_is_mutated_one_text_at_a_time(tmp_path: Path) -> None:
    text = (DOCS / "guides/several-texts.md").read_text(encoding="utf-8")
    program = json.loads(blocks(text, "json")[0])
    words = {"query_prompt": "refund", "answer_prompt": "cite"}
    routes = {"program_route": "/program", "taskset_route": "/taskset", "taskset_tasks_route": "/taskset/tasks"}
    contract = {"version": "synth_optimizers.gepa.v2", "rollout_route": "/rollouts", **routes}
    documents = {
        "/metadata": {"optimizer_contracts": {"gepa": contract}},
        "/program": program,
        "/taskset": {"taskset_id": "questions", "splits": {"train": 8, "test": 2}},
    }

    def container(_method: str, path: str, body: Any) -> tuple[int, Any]:  # noqa: ANN401 (any JSON value)
        if path == "/taskset/tasks":
            return 200, {"tasks": [{"task_id": name} for name in body["task_ids"]]}
        if path == "/rollouts":
            found = sum(word in body["candidate"][field] for field, word in words.items())
            name = body["task"]["task_id"]
            return 200, {"rollout_id": body["rollout_id"], "example_id": name, "reward": found / 2}
        return (200, documents[path]) if path in documents else (404, {"detail": "unknown"})

    def proposer(_method: str, _path: str, body: Any) -> tuple[int, Any]:  # noqa: ANN401 (any JSON value)
        asked = body["messages"][-1]["content"]
        (field,) = re.findall(r"in these fields only: (.*)\.", asked)
        texts = {field.strip("`"): f"Answer {{question}}: {words[field.strip('`')]}"}
        manifest = {"schema_version": "gepa_workspace_proposal_v3", "proposals": [{"proposed_payload": texts}]}
        return 200, {"model": "m", "choices": [{"message": {"role": "assistant", "content": json.dumps(manifest)}}]}

    with serve_calls(container) as container_url, serve_calls(proposer) as proposer_url:
        config = {
            "run": {"run_id": "several", "output_dir": str(tmp_path)},
            "container": {"url": container_url},
            "dataset": {"train_seeds": list(range(8)), "heldout_seeds": [0, 1]},
            "proposer": {"backend": "openai_compatible", "base_url": f"{proposer_url}/v1", "model": "m"},
        }
        merge(config, tomllib.loads(blocks(text, "toml")[0]))
        merge(config, {"gepa": {"search": "reference", "minibatch_size": 2, "max_generations": 4}})
        result = GepaRun.from_config(config, environ={}).execute()
    lines = Path(result.event_feed_path).read_text(encoding="utf-8").splitlines()
    registered = [found["fields"] for line in lines if (found := json.loads(line))["type"] == "candidate.registered"]
    assert [found["changed_fields"] for found in registered[1:]] == [["query_prompt"], ["answer_prompt"]]
    assert result.scores.heldout_gain is not None
    assert result.scores.heldout_gain.difference == 1.0
