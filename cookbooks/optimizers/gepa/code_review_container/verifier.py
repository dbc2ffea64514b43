"""Scores a review by the planted defects: a comment is correct within one line of a defect, once per defect."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from code_review_container.tasks import Defect

TOLERANCE = 1


@dataclass(frozen=True)
class Comment:
    """A comment on a line, and the line of the prompt that caused it, if known."""

    line: int
    message: str
    because: str = ""


# All comments on one line count as one.
Spot = tuple[Comment, ...]


@dataclass(frozen=True)
class Verdict:
    """The comments that match a defect, those that do not, and the defects without a comment."""

    found: tuple[tuple[Defect, Spot], ...]
    missed: tuple[Defect, ...]
    false_alarms: tuple[Spot, ...]

    @property
    def precision(self) -> float:
        """The share of commented lines that match a defect; 0 without comments."""
        return ratio(len(self.found), len(self.found) + len(self.false_alarms))

    @property
    def recall(self) -> float:
        """The share of defects that were found."""
        return ratio(len(self.found), len(self.found) + len(self.missed))

    @property
    def f1(self) -> float:
        """The harmonic mean of precision and recall."""
        return f1_of(len(self.found), len(self.missed), len(self.false_alarms))

    def f1_by_class(self) -> dict[str, float]:
        """Return F1 for each class of defect, ignoring defects of other classes. All false alarms count."""
        found = [defect.kind.defect_class for defect, _ in self.found]
        missed = [defect.kind.defect_class for defect in self.missed]
        return {
            name: f1_of(found.count(name), missed.count(name), len(self.false_alarms))
            for name in sorted({*found, *missed})
        }


def judge(comments: Iterable[Comment], defects: Iterable[Defect]) -> Verdict:
    """Match each defect with the nearest unmatched line with comments."""
    left: dict[int, Spot] = {}
    for comment in comments:
        left[comment.line] = (*left.get(comment.line, ()), comment)
    found: dict[Defect, Spot] = {}
    wanted = list(defects)
    for distance in range(TOLERANCE + 1):
        for defect in wanted:
            places = [place for place in (defect.line - distance, defect.line + distance) if place in left]
            if defect not in found and places:
                found[defect] = left.pop(places[0])
    missed = tuple(defect for defect in wanted if defect not in found)
    return Verdict(tuple(found.items()), missed, tuple(left.values()))


def f1_of(found: int, missed: int, false_alarms: int) -> float:
    """Return F1 from counts."""
    return ratio(2 * found, 2 * found + missed + false_alarms)


def ratio(part: int, whole: int) -> float:
    """Return a ratio; 0 if the whole is 0."""
    return part / whole if whole else 0.0
