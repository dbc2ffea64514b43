"""The embedding model of the offline policies: static vectors of words, without a network."""

from __future__ import annotations

import logging
from functools import cache
from pathlib import Path
from typing import Any


@cache
def embedding_model() -> Any:  # noqa: ANN401 (the package has no types)
    """Load the model once. A container that asks a language model does without it."""
    # Its import takes seconds and turns on the logs of all libraries.
    import wordllama

    logging.getLogger().setLevel(logging.WARNING)
    # The package holds its weights and its tokenizer, but looks for the tokenizer only in its cache directory.
    return wordllama.WordLlama.load(cache_dir=Path(wordllama.__file__).parent, disable_download=True)
