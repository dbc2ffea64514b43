"""The review: only the prompt decides what is reported, and the verifier counts only planted defects."""

import asyncio

import pytest
from code_review_container.checklist import read_lines, rules_of
from code_review_container.container import SEED_PROMPT, feedback, result
from code_review_container.defects import KINDS
from code_review_container.policy import OfflinePolicy, numbered, read_comments
from code_review_container.reflect import read_evidence
from code_review_container.tasks import Defect, Row, load_rows
from code_review_container.verifier import Comment, judge
from shared.brief import Row as Evidenced

CHECKLIST = """\
Review the code change and report problems.
- Flag hardcoded passwords.
2. Look for a mutable default argument
Flag the use of eval.
Don't report assignments to variables that are never used."""


@pytest.fixture(scope="module")
def rows() -> dict[str, Row]:
    return load_rows()


@pytest.fixture(scope="module")
def policy(rows: dict[str, Row]) -> OfflinePolicy:
    return OfflinePolicy(rows.values())


def mean_f1(policy: OfflinePolicy, rows: dict[str, Row], prompt: str, split: str = "test") -> float:
    reviews = [(row, asyncio.run(policy.review(prompt, row, {}))) for row in rows.values() if row.split == split]
    scores = [judge(review.comments, row.defects).f1 for row, review in reviews]
    return sum(scores) / len(scores)


def defect(line: int, kind: str = "weak_hash") -> Defect:
    return Defect(line, KINDS[kind])


def test_the_initial_prompt_matches_no_rule(policy: OfflinePolicy, rows: dict[str, Row]) -> None:
    assert rules_of(SEED_PROMPT) == {}
    assert mean_f1(policy, rows, SEED_PROMPT) == mean_f1(policy, rows, SEED_PROMPT, "train") == 0.0


def test_checklist_lines_are_parsed_in_any_form() -> None:
    assert [(line.subject, line.forbids) for line in read_lines(CHECKLIST)][1:] == [
        ("hardcoded passwords", False),
        ("a mutable default argument", False),
        ("the use of eval", False),
        ("assignments to variables that are never used", True),
    ]


def test_a_line_enables_the_rules_it_matches() -> None:
    reasons = rules_of(CHECKLIST)
    assert {"S105", "S106", "S107", "B006", "S307"} <= set(reasons)
    assert reasons["B006"] == "Look for a mutable default argument"
    assert len(reasons) < 12


def test_the_most_similar_line_decides_about_a_rule() -> None:
    broad = "Flag variables that are never used."
    assert "F841" in rules_of(broad)
    assert "F841" not in rules_of(f"{broad}\nDo not report a local variable that is assigned to but never used.")


def test_a_sensible_checklist_is_far_from_perfect(policy: OfflinePolicy, rows: dict[str, Row]) -> None:
    assert 0.05 < mean_f1(policy, rows, CHECKLIST) < 0.4
    everything = "\n".join(f"Flag {kind.what}." for kind in KINDS.values())
    assert 0.7 < mean_f1(policy, rows, everything) < 1.0


def test_a_comment_counts_once_and_within_one_line() -> None:
    verdict = judge([Comment(4, "a"), Comment(4, "b"), Comment(5, "c"), Comment(9, "d")], [defect(5), defect(20)])
    assert [spot[0].message for _, spot in verdict.found] == ["c"]
    assert [spot[0].line for spot in verdict.false_alarms] == [4, 9]
    assert (verdict.precision, verdict.recall) == (1 / 3, 1 / 2)
    assert judge([Comment(4, "near")], [defect(5)]).f1 == 1.0
    assert judge([Comment(3, "far")], [defect(5)]).f1 == 0.0
    assert judge([], [defect(5)]).f1 == 0.0


def test_a_comment_on_every_line_is_a_bad_review() -> None:
    assert judge([Comment(line, "x") for line in range(1, 41)], [defect(5), defect(20)]).f1 < 0.1


def test_each_class_has_its_own_f1() -> None:
    verdict = judge([Comment(5, "x"), Comment(30, "y")], [defect(5), defect(20, "catches_everything")])
    assert verdict.f1_by_class() == {"errors": 0.0, "security": 2 / 3}


def test_a_result_has_feedback_as_text(policy: OfflinePolicy, rows: dict[str, Row]) -> None:
    row = next(row for row in rows.values() if [defect.kind.name for defect in row.defects] == ["weak_hash"])
    missed = result(row, asyncio.run(policy.review(SEED_PROMPT, row, {})))
    assert "Missed line" in missed["feedback"]["feedback"]
    assert "a weak hash such as md5 or sha1 (it is insecure)" in missed["feedback"]["feedback"]
    assert missed["usage"] == {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0, "cost_usd": 0.0}
    prompt = "Flag insecure hash functions of hashlib."
    found = result(row, asyncio.run(policy.review(prompt, row, {})))
    assert f'because of "{prompt}"' in found["feedback"]["feedback"]
    assert found["objectives"] == {"f1": 1.0, "precision": 1.0, "recall": 1.0, "f1_security": 1.0}


def test_the_reflector_parses_the_feedback_of_the_container(policy: OfflinePolicy, rows: dict[str, Row]) -> None:
    prompt = "\n".join([SEED_PROMPT, *(f"Flag {kind.what}." for kind in KINDS.values())])
    for row in rows.values():
        verdict = judge(asyncio.run(policy.review(prompt, row, {})).comments, row.defects)
        evidence = read_evidence([Evidenced(row.task_id, feedback=[feedback(row, verdict)])])
        assert [defect.what for defect in evidence.missed] == [defect.kind.what for defect in verdict.missed]
        assert [defect.why for defect, _ in evidence.found] == [defect.kind.why for defect, _ in verdict.found]
        assert len(evidence.alarms) == sum(len(spot) for spot in verdict.false_alarms)
        assert {remark.because for _, spot in evidence.found for remark in spot} <= set(prompt.splitlines())


def test_the_answer_of_a_model_is_parsed_and_broken_answers_have_no_comments(rows: dict[str, Row]) -> None:
    said = 'Here:\n```json\n[{"line": 3, "problem": "eval"}, {"line": "4"}, 5]\n```'
    assert read_comments(said) == [Comment(3, "eval")]
    assert read_comments("nothing is wrong") == read_comments("[not json]") == []
    row = rows["train:3"]
    shown = numbered(row).splitlines()
    assert shown[row.defects[0].line].startswith(f"{row.defects[0].line:>4} + ")
