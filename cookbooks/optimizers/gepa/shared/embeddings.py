"""The embedding model of the offline policies: static word vectors, without network access."""

from __future__ import annotations

import logging
from functools import cache
from pathlib import Path
from typing import Any


@cache
def embedding_model() -> Any:  # noqa: ANN401 (the package has no types)
    """Load the model once. A container with a language model does not need it."""
    # The import takes seconds and enables the logs of all libraries.
    import wordllama

    logging.getLogger().setLevel(logging.WARNING)
    # The package contains its weights and its tokenizer, but searches the tokenizer only in its cache directory.
    return wordllama.WordLlama.load(cache_dir=Path(wordllama.__file__).parent, disable_download=True)
