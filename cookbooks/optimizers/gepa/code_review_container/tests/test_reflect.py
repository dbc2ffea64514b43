"""The strategy of the reflector, which learns only from feedback."""

from code_review_container.reflect import propose
from shared.brief import MERGE, Attempt, Brief, Row

SEED = "Review the code change and report problems."
EVAL = "a text that is run with eval"
FLAG = f"Flag {EVAL}."
MISSED = f"Missed line 4 `return eval(text)`: {EVAL} (whoever writes the text runs code)."
MAGIC = "Magic value used in comparison, consider replacing `{}` with a constant variable"


def alarm(message: str, because: str) -> str:
    return f'False alarm at line 9 `if size > 5:`. Said: "{message}" because of "{because}".'


def brief(prompt: str, *feedback: str, count: int = 1, rejected: list[Attempt] | None = None) -> Brief:
    rows = [Row(f"train:{place}", score=0.5, feedback=[text]) for place, text in enumerate(feedback)]
    texts = {"review_prompt": prompt}
    return Brief(["review_prompt"], [texts], base=texts, rows=rows, proposal_count=count, rejected=rejected or [])


def prompts(asked: Brief) -> list[str]:
    return [proposal.fields["review_prompt"] for proposal in propose(asked)]


def test_a_missed_defect_becomes_a_line() -> None:
    assert prompts(brief(SEED, f"0 of 1 defects found, 0 false alarms.\n{MISSED}")) == [f"{SEED}\n{FLAG}"]


def test_wordings_without_effect_are_replaced() -> None:
    [reworded] = prompts(brief(f"{SEED}\n{FLAG}", MISSED))
    assert reworded == f"{SEED}\nFlag {EVAL}: whoever writes the text runs code."
    tried = Attempt("c1", "primary_not_improved", [reworded.splitlines()[1]], [FLAG])
    [other] = prompts(brief(f"{SEED}\n{FLAG}", MISSED, rejected=[tried]))
    assert other not in (f"{SEED}\n{FLAG}", reworded)


def test_wordings_with_some_effect_are_kept() -> None:
    found = f'Found line 2 `eval(x)`: {EVAL} (whoever writes the text runs code). Said: "eval" because of "{FLAG}".'
    [both] = prompts(brief(f"{SEED}\n{FLAG}", f"{found}\n{MISSED}"))
    assert both.startswith(f"{SEED}\n{FLAG}\nFlag ")


def test_false_alarms_are_forbidden_without_quoted_names() -> None:
    flag = "Flag comparisons."
    [proposed] = prompts(brief(f"{SEED}\n{flag}", alarm(MAGIC.format(5), flag), alarm(MAGIC.format(7), flag)))
    line = "Do not report magic value used in comparison, consider replacing with a constant variable."
    assert proposed == f"{SEED}\n{flag}\n{line}"
    again = prompts(brief(proposed, alarm(MAGIC.format(5), flag), alarm(MAGIC.format(7), flag)))
    assert again == [f"{SEED}\n{line}"]


def test_mostly_correct_reports_are_not_forbidden() -> None:
    found = f'Found line 2 `eval(x)`: {EVAL} (it runs code). Said: "Use of eval" because of "{FLAG}".'
    for prompt in prompts(brief(f"{SEED}\n{FLAG}", found, alarm("Use of eval", FLAG), count=5)):
        assert "Do not report" not in prompt


def test_proposals_are_always_new_and_distinct() -> None:
    lines = [SEED, *(f"Flag thing {number}." for number in range(9))]
    first = prompts(brief("\n".join(lines), "1 of 1 defects found, 0 false alarms.", count=2))
    assert len(first) == len(set(first)) == 2
    rejected = [Attempt(f"c{place}", "", [], [line]) for place, line in enumerate(lines[-2:])]
    second = prompts(brief("\n".join(lines), "1 of 1 defects found, 0 false alarms.", count=2, rejected=rejected))
    assert len(second) == 2
    assert not set(first) & set(second)


def test_a_merge_has_the_lines_of_both_parents() -> None:
    parents = [{"review_prompt": f"{SEED}\nFlag one thing."}, {"review_prompt": f"{SEED}\nFlag another."}]
    [merged] = propose(Brief(["review_prompt"], parents, operation=MERGE, base=parents[0]))
    assert merged.fields == {"review_prompt": f"{SEED}\nFlag one thing.\nFlag another."}


def test_equal_briefs_give_equal_answers() -> None:
    asked = brief(SEED, MISSED, alarm(MAGIC.format(5), FLAG), count=3)
    assert propose(asked) == propose(asked)
