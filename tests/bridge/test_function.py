"""Which functions are accepted, what they are called with, and what their results mean."""

from __future__ import annotations

import functools
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from synth_optimizers.bridge import BridgeError
from synth_optimizers.bridge.function import (
    MAX_FEEDBACK,
    ResultError,
    describe_exception,
    describe_function,
    plan_call,
    read_result,
)
from synth_optimizers.bridge.rows import SourceRow
from synth_optimizers.bridge.task import placeholders
from synth_optimizers.bridge.values import dump

ROW = {"question": "q", "answer": "a"}
TEXTS = {"prompt": "p"}


def call(function: Any, texts: dict[str, str] | None = None, row: dict[str, Any] | None = None) -> Any:
    texts, row = texts or TEXTS, row or ROW
    plan, _ = plan_call(describe_function(function), texts, [SourceRow(row, "rows.csv:2")])
    positional, named = plan.arguments(texts, row)
    return function(*positional, **named)


class Scorer:
    """Scores as an object."""

    def __call__(self, prompt: str, row: dict[str, Any]) -> Any:
        return prompt, row

    def method(self, prompt: str, question: str) -> Any:
        return prompt, question


def test_parameters_get_texts_columns_and_the_row() -> None:
    assert call(lambda prompt, row: (prompt, row)) == ("p", ROW)
    assert call(lambda question, prompt, answer: (prompt, question, answer)) == ("p", "q", "a")
    assert call(lambda prompt, question, /, *, answer: (prompt, question, answer)) == ("p", "q", "a")
    assert call(lambda prompt, question, extra=5: (prompt, question, extra)) == ("p", "q", 5)
    assert call(lambda **everything: everything) == {**ROW, **TEXTS}
    assert call(lambda prompt, **rest: (prompt, rest)) == ("p", ROW)
    assert call(Scorer()) == ("p", ROW)
    assert call(Scorer().method) == ("p", "q")
    assert call(functools.partial(lambda model, prompt, row: (model, prompt, row), "m")) == ("m", "p", ROW)


def test_a_column_or_a_text_named_policy_is_not_the_policy_of_the_run() -> None:
    assert call(lambda prompt, question, policy: (prompt, question, policy)) == ("p", "q", {})
    assert call(lambda prompt, policy: (prompt, policy), row={"policy": "a column"}) == ("p", "a column")
    assert call(lambda policy, question: (policy, question), texts={"policy": "a text"}) == ("a text", "q")
    assert call(lambda prompt, **rest: (prompt, rest)) == ("p", ROW)


@pytest.mark.parametrize(
    ("given", "seconds"), [(0, 0), (1.2, 2), ("3", 3), (1e9, 3600), (-1, None), ("soon", None), (float("nan"), None)]
)
def test_an_exception_may_say_when_to_call_again(given: Any, seconds: int | None) -> None:
    error = RuntimeError("later")
    error.retry_after = given  # type: ignore[attr-defined]
    assert describe_exception(error).retry_after == seconds
    assert describe_exception(RuntimeError("never")).retry_after is None


def test_the_row_is_a_copy() -> None:
    def change(prompt: str, row: dict[str, Any]) -> None:
        row.clear()
        row[prompt] = 1

    call(change)
    assert ROW == {"question": "q", "answer": "a"}


@pytest.mark.parametrize(
    ("function", "code", "words"),
    [
        (lambda prompt, qestion: 1, "function_signature", "Did you mean 'question'?"),  # noqa: ARG005
        (lambda prompt, zzz, row: 1, "function_signature", "'zzz'"),  # noqa: ARG005
        (lambda promt="", row=None: 1, "text_unused", "Did you mean 'promt'?"),  # noqa: ARG005
        (lambda prompt: 1, "function_signature", "takes nothing of the row"),  # noqa: ARG005
        (Scorer, "function_kind", "is a class"),
        (5, "function_kind", "is 5, not a function"),
    ],
)
def test_a_function_that_does_not_fit_is_refused(function: Any, code: str, words: str) -> None:
    with pytest.raises(BridgeError) as caught:
        call(function)
    assert caught.value.code == code
    assert words in str(caught.value)


def test_generators_are_refused() -> None:
    def generator(prompt: str, row: Any) -> Any:
        yield prompt, row

    with pytest.raises(BridgeError, match="is a generator"):
        describe_function(generator)


def test_a_missing_column_names_the_row() -> None:
    rows = [SourceRow(ROW, "rows.jsonl:1"), SourceRow({"question": "q"}, "rows.jsonl:2")]
    function = describe_function(lambda prompt, answer: 1)  # noqa: ARG005
    with pytest.raises(BridgeError, match=r"rows\.jsonl:2 has no column 'answer'"):
        plan_call(function, TEXTS, rows)
    plan_call(describe_function(lambda prompt, answer="": 1), TEXTS, rows)  # noqa: ARG005


def test_coroutine_functions_are_recognized() -> None:
    async def evaluate(prompt: str, row: Any) -> float:
        return 1 if prompt and row else 0

    class Object:
        async def __call__(self, prompt: str, row: Any) -> float:
            return 1 if prompt and row else 0

    for function in (evaluate, functools.partial(evaluate), Object(), Object().__call__):
        assert describe_function(function).is_async


@pytest.mark.parametrize("value", [1, True, 0.5, Decimal("0.5"), Fraction(1, 2), (1, "said"), {"score": 1}, [1, None]])
def test_numbers_are_scores(value: Any) -> None:
    assert 0 <= read_result(value, "f")["score"] <= 1


class Scalar:
    """A number of another library."""

    def __float__(self) -> float:
        return 0.25

    def item(self) -> float:
        return 0.25


def test_numbers_of_other_libraries_are_scores() -> None:
    found = read_result({"score": Scalar(), "trace": {"x": Scalar(), (1, 2): object}}, "f")
    assert found["score"] == 0.25
    assert found["trace"]["x"] == 0.25


anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters())
    | st.binary()
    | st.complex_numbers(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner, inner),
    max_leaves=20,
)


@given(anything, anything)
@settings(deadline=None)
def test_any_result_is_a_score_or_a_clear_error(value: Any, trace: Any) -> None:
    for result in (value, (value, trace), {"score": value, "trace": trace}, {"score": 1, "feedback": trace}):
        try:
            found = read_result(result, "f")
        except ResultError as error:
            message = str(error)
            assert message.startswith("f returned")
        else:
            assert abs(found["score"]) <= 1e100
            assert "NaN" not in dump(found["score"])
            dump(found).encode()


def test_long_texts_are_cut() -> None:
    found = read_result((1, "x" * 10**6), "f")
    assert found["feedback"].startswith("x" * MAX_FEEDBACK)
    assert found["feedback"].endswith("(cut: 1000000 characters)")
    deep: list[Any] = []
    for _ in range(5000):
        deep = [deep]
    dump(read_result({"score": 1, "trace": deep}, "f"))


def test_usage_that_cannot_be_true_is_unknown() -> None:
    usage = {"prompt_tokens": 3.0, "completion_tokens": -1, "cost_usd": "0.1", "other": 3}
    assert read_result({"score": 1, "usage": usage}, "f")["usage"] == {"prompt_tokens": 3}
    assert "usage" not in read_result({"score": 1, "usage": 5}, "f")


def test_placeholders_are_found_beside_other_braces() -> None:
    assert placeholders("{question} and {answer} and {question}") == ["question", "answer"]
    assert placeholders('{"json": {question}} {') == ["question"]
    assert placeholders("{{question}} {} {0}") == []


def test_a_value_of_the_user_for_policy_is_kept() -> None:
    def scored(prompt: str, row: dict[str, Any], policy: Any = "strict") -> Any:
        return prompt, row, policy

    assert call(scored)[2] == "strict"
    assert call(functools.partial(scored, policy="bound"))[2] == "bound"
    plan, _ = plan_call(describe_function(scored), TEXTS, [SourceRow(ROW, "rows.csv:2")])
    assert plan.arguments(TEXTS, ROW, {"model": "m"})[1]["policy"] == {"model": "m"}
    bound = functools.partial(scored, policy="bound")
    plan, _ = plan_call(describe_function(bound), TEXTS, [SourceRow(ROW, "rows.csv:2")])
    assert "policy" not in plan.arguments(TEXTS, ROW, {"model": "m"})[1]
