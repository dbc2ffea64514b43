"""What the documentation site needs beyond its pages: the changelog, links to it, and no address of another host."""

from __future__ import annotations

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

CHANGELOG = "changelog.md"
MERMAID = re.compile(r"https://unpkg\.com/mermaid[^\"']*")
"""The theme would load this for diagrams, of which there are none."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the changelog, which stands outside of the pages."""
    text = Path(config.config_file_path).with_name("CHANGELOG.md").read_text(encoding="utf-8")
    files.append(File.generated(config, CHANGELOG, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Lead links to the changelog to its page, and show `|` in code within tables as it is."""
    up = "../" * page.file.src_uri.count("/")
    markdown = markdown.replace(f"]({up}../CHANGELOG.md)", f"]({up}{CHANGELOG})")
    return re.sub(r"^\|.*\|$", lambda row: row[0].replace("\\|", "&#124;"), markdown, flags=re.MULTILINE)


def on_post_build(config: MkDocsConfig) -> None:
    """Take out the one address that the theme's scripts could load something from."""
    for script in Path(config.site_dir).glob("assets/javascripts/bundle.*.min.js"):
        script.write_text(MERMAID.sub("", script.read_text(encoding="utf-8")), encoding="utf-8")
