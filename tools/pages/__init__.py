"""The generated pages below `docs/`, one module per page."""


class UnsupportedExport(Exception):  # noqa: N818 (not an error of the program)
    """The extension exports something that a page cannot render."""
