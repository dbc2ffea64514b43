"""The pages below `docs/` that are generated from what the extension exports: one module each."""


class NotUnderstood(Exception):  # noqa: N818 (it says what it is)
    """The extension exports something that a page does not know how to tell."""
