"""The acceptance criteria of the cookbooks."""

from pathlib import Path

import pytest
from shared.acceptance import COOKBOOKS, Case, Report, SeedReport, shortcomings, summary
from shared.significance import seed_statistics, sign_test


def runs(*gained: tuple[float, float | None, int, int]) -> Report:
    """Return a report of runs, each with its gain, the lower bound of its interval, and rows won and lost."""
    seeds = [
        SeedReport(
            seed=seed,
            seed_score=0.6,
            best_score=0.6 + gain,
            gain=gain,
            low=low,
            high=None if low is None else 2 * gain - low,
            wins=wins,
            losses=losses,
            p_rows=sign_test(wins, losses),
            rollouts=100,
            seconds=1.0,
        )
        for seed, (gain, low, wins, losses) in enumerate(gained)
    ]
    return Report("some", True, 0, seeds, seed_statistics([gain for gain, *_ in gained]))


CASE = Case("some", Path("some.toml"))
ONE_ROW = (1 / 240, -0.004, 1, 0)
CLEAR = (0.15, 0.09, 44, 8)


def test_a_gain_of_one_row_is_not_accepted_even_if_all_seeds_agree() -> None:
    report = runs(*[ONE_ROW] * 5)
    assert report.gains.p_t is None
    assert shortcomings(CASE, report) == ["the gain is not significant over held-out rows with seed 0, 1, 2, 3, 4"]
    assert "all gains are equal, over held-out rows [-0.0040, +0.0123]" in summary(report)
    assert "one-sided" in summary(report)


def test_clear_gains_are_accepted() -> None:
    assert shortcomings(CASE, runs(*[CLEAR] * 5)) == []
    assert shortcomings(CASE, runs(CLEAR, CLEAR, CLEAR, (0.14, 0.08, 42, 8), (0.16, 0.1, 45, 7))) == []


@pytest.mark.parametrize("weak", [ONE_ROW, (0.15, None, 44, 8), (0.15, -0.01, 44, 8), (0.02, 0.001, 5, 0)])
def test_each_random_seed_must_gain_enough_rows(weak: tuple[float, float | None, int, int]) -> None:
    found = shortcomings(CASE, runs(CLEAR, CLEAR, weak, CLEAR, CLEAR))
    assert "the gain is not significant over held-out rows with seed 2" in found


def test_goals_belong_to_a_config() -> None:
    def asked(config: Path | None) -> tuple[float | None, int | None]:
        case = Case.read("banking77", config, ())
        return case.goal, case.max_rollouts

    configs = COOKBOOKS / "configs"
    assert asked(None) == asked(configs / "banking77.toml") == (0.70, None)
    assert asked(configs / "banking77_real.toml") == (0.74, 20_000)
    assert asked(Path("my_own.toml")) == (None, None)


def test_a_missed_goal_and_wasted_rollouts_are_reported() -> None:
    case = Case("some", Path("some.toml"), goal=0.8, max_rollouts=99)
    assert shortcomings(case, runs(*[CLEAR] * 5)) == [
        "the held-out score is 0.7500, and 0.8 is to be reached",
        "a run took 100 rollouts, and 99 are allowed",
    ]
    assert shortcomings(Case("some", Path("some.toml"), goal=0.7, max_rollouts=100), runs(*[CLEAR] * 5)) == []


def test_disagreeing_random_seeds_are_not_accepted() -> None:
    found = shortcomings(CASE, runs(CLEAR, CLEAR, (-0.15, -0.2, 8, 44), (-0.15, -0.2, 8, 44), CLEAR))
    assert "the gain is not significant over seeds" in found
