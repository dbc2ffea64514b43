"""What the documentation site needs beyond its pages: whole folders, the changelog, and no address of another host."""

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
"""What the theme's script would load for diagrams, of which there are none, and for old browsers."""


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put every page of a folder into the navigation where the folder is named."""
    for entry in config.nav or []:
        for title, place in entry.items():
            if isinstance(place, str) and place.endswith("/"):
                pages = sorted(page.name for page in (Path(config.docs_dir) / place).glob("[0-9]*.md"))
                entry[title] = [f"{place}README.md", *(place + name for name in pages)]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the changelog, which stands outside of the pages."""
    text = Path(config.config_file_path).with_name("CHANGELOG.md").read_text(encoding="utf-8")
    files.append(File.generated(config, CHANGELOG, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Lead links to the changelog to its page, and show `|` in code within tables as it is."""
    up = "../" * page.file.src_uri.count("/")
    markdown = markdown.replace(f"]({up}../CHANGELOG.md)", f"]({up}{CHANGELOG})")
    return TABLE_ROW.sub(lambda row: CODE.sub(lambda code: code[0].replace("\\|", "|"), row[0]), markdown)


def on_post_build(config: MkDocsConfig) -> None:
    """Take out every address that the theme's scripts could load something from, and the maps of these scripts."""
    scripts = Path(config.site_dir) / "assets"
    for script in scripts.rglob("*.js"):
        script.write_text(ELSEWHERE.sub("", script.read_text(encoding="utf-8")), encoding="utf-8")
    for source_map in scripts.rglob("*.map"):
        source_map.unlink()
