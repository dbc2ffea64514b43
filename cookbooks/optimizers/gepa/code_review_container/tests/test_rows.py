"""The rows: planted defects are real, and are not revealed before a review is scored."""

import json
from collections import Counter
from pathlib import Path

import pytest
from code_review_container.defects import CLASSES, KINDS
from code_review_container.linter import lint
from code_review_container.tasks import SPLITS, Row, load_rows, new_lines, read_snippets

# The linter rules that detect each kind of defect. No rule detects a wrong slice boundary.
KNOWN_BY = {
    "mutable_default": {"B006"},
    "late_binding": {"B023"},
    "identity_of_literal": {"F632"},
    "undefined_name": {"F821"},
    "value_never_used": {"F841"},
    "repeated_key": {"F601"},
    "assert_on_tuple": {"F631"},
    "strip_of_suffix": {"B005"},
    "exception_not_raised": {"PLW0133"},
    "local_time": {"DTZ003", "DTZ005"},
    "catches_everything": {"E722"},
    "swallowed_error": {"S110", "S112"},
    "lost_cause": {"B904"},
    "return_in_finally": {"B012"},
    "exit_status_ignored": {"PLW1510"},
    "evaluates_input": {"S307"},
    "shell_command": {"S602"},
    "query_from_text": {"S608"},
    "secret_in_code": {"S105", "S106", "S107"},
    "weak_hash": {"S324"},
    "unpickles_input": {"S301"},
    "unsafe_yaml": {"S506"},
    "certificate_not_checked": {"S501"},
    "guessable_random": {"S311"},
    "open_permissions": {"S103"},
    "file_not_closed": {"SIM115"},
    "no_timeout": {"S113"},
    "blocking_in_async": {"ASYNC251"},
    "task_not_kept": {"RUF006"},
}


@pytest.fixture(scope="module")
def rows() -> dict[str, Row]:
    return load_rows()


def test_the_rows_are_reproducible(rows: dict[str, Row]) -> None:
    assert rows == load_rows()
    assert Counter(row.split for row in rows.values()) == SPLITS
    assert {len(row.defects) for row in rows.values()} == {1, 2, 3, 4}
    assert {defect.kind.defect_class for row in rows.values() for defect in row.defects} == set(CLASSES)


def test_the_diff_contains_the_new_file_and_adds_every_defect(rows: dict[str, Row]) -> None:
    for row in rows.values():
        lines = new_lines(row.diff)
        assert "\n".join(text for text, _ in lines) + "\n" == row.new
        assert all(lines[defect.line - 1][1] for defect in row.defects)
        assert any(not is_added for _, is_added in lines)


def test_a_row_does_not_reveal_its_defects(rows: dict[str, Row]) -> None:
    for row in rows.values():
        task = row.task()
        assert set(task) == {"task_id", "split", "seed", "path", "diff"}
        text = json.dumps(task)
        assert "#!" not in text
        assert not any(kind.name in text or kind.what in text for kind in KINDS.values())


def test_no_added_function_is_in_both_splits() -> None:
    snippets = read_snippets(Path(__file__).parent.parent / "snippets.txt")
    assert set(snippets) == {*KINDS, "clean"}
    bodies = [snippet.partition("\n")[2] for found in snippets.values() for snippet in found]
    assert len(set(bodies)) == len(bodies)
    assert all(snippet.count("#!") == (kind != "clean") for kind, found in snippets.items() for snippet in found)


def test_the_linter_finds_the_defects_and_little_else(rows: dict[str, Row]) -> None:
    confirmed, unknown, elsewhere = 0, [], []
    known = set().union(*KNOWN_BY.values())
    for row, findings in zip(rows.values(), lint(row.new for row in rows.values()), strict=True):
        places = {defect.line for defect in row.defects}
        for defect in row.defects:
            codes = {finding.code for finding in findings if finding.line == defect.line}
            confirmed += bool(codes & KNOWN_BY.get(defect.kind.name, set()))
            unknown += [defect.kind.name] * (not codes & KNOWN_BY.get(defect.kind.name, set()))
        added = [is_added for _, is_added in new_lines(row.diff)]
        elsewhere += [
            finding.code
            for finding in findings
            if finding.code in known and finding.line not in places and added[finding.line - 1]
        ]
    assert set(unknown) <= {"wrong_boundary", "strip_of_suffix"}
    assert confirmed >= 280
    # Non-cryptographic randomness is fine here, though a rule reports it.
    assert set(elsewhere) == {"S311"}
