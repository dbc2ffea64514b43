"""MkDocs hooks: pages of whole folders, the changelog, and no resources of other hosts."""

from __future__ import annotations

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

CHANGELOG = "changelog.md"
TABLE_ROW = re.compile(r"^\|.*\|$", flags=re.MULTILINE)
CODE = re.compile(r"`[^`]*`")
ELSEWHERE = re.compile(r"https://[\w.]+/(?:mermaid|resize-observer-polyfill)[^\"'`]*")
"""Addresses from which the theme's script would load diagrams, which no page has, and polyfills for old browsers."""


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Expand each folder in the navigation to all its pages."""
    for entry in config.nav or []:
        for title, place in entry.items():
            if isinstance(place, str) and place.endswith("/"):
                pages = sorted(page.name for page in (Path(config.docs_dir) / place).glob("[0-9]*.md"))
                entry[title] = [f"{place}README.md", *(place + name for name in pages)]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the changelog, which is outside the docs directory."""
    text = Path(config.config_file_path).with_name("CHANGELOG.md").read_text(encoding="utf-8")
    files.append(File.generated(config, CHANGELOG, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Redirect links to the changelog to its page, and render `|` in code within tables."""
    up = "../" * page.file.src_uri.count("/")
    markdown = markdown.replace(f"]({up}../CHANGELOG.md)", f"]({up}{CHANGELOG})")
    return TABLE_ROW.sub(lambda row: CODE.sub(lambda code: code[0].replace("\\|", "|"), row[0]), markdown)


def on_post_build(config: MkDocsConfig) -> None:
    """Remove addresses of other hosts from the theme's scripts, and the source maps of these scripts."""
    scripts = Path(config.site_dir) / "assets"
    for script in scripts.rglob("*.js"):
        script.write_text(ELSEWHERE.sub("", script.read_text(encoding="utf-8")), encoding="utf-8")
    for source_map in scripts.rglob("*.map"):
        source_map.unlink()
