"""Draws panels with lines on two logarithmic scales."""

from __future__ import annotations

import math
from dataclasses import dataclass

WIDTH, HEIGHT, LEFT, TOP, GAP = 260, 170, 60, 62, 70


@dataclass
class Line:
    """A line of a panel."""

    colour: str
    points: list[tuple[float, float]]


@dataclass
class Panel:
    """A small chart with its lines."""

    title: str
    across: str
    lines: list[Line]


def ticks(low: float, high: float) -> list[float]:
    """Return round numbers within a range: powers of ten, or more if there are fewer than three."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for steps in ((1,), (1, 2, 5)):
        found = [step * 10.0**power for power in powers for step in steps if low <= step * 10.0**power <= high]
        if len(found) > 2:
            return found
    return found


def label(value: float) -> str:
    """Write a number at a scale."""
    return f"{value / 1000:g}k" if value >= 1000 else f"{value:g}"


def draw(panel: Panel, x: float, y: float) -> list[str]:
    """Draw a panel with its upper left corner at a place."""
    points = [point for line in panel.lines for point in line.points]
    ranges = [(min(values), max(values)) for values in zip(*points, strict=True)]
    (left, right), (low, high) = [(least, most if most > least else least * 2) for least, most in ranges]
    low, high = low / 1.3, high * 1.3

    def across(value: float) -> float:
        return x + WIDTH * math.log(value / left) / math.log(right / left)

    def up(value: float) -> float:
        return y + HEIGHT * (1 - math.log(value / low) / math.log(high / low))

    out = [f'<text x="{x:.0f}" y="{y - 10:.0f}" font-weight="bold">{panel.title}</text>']
    for tick in ticks(low, high):
        out += [f'<path d="M{x:.0f} {up(tick):.1f}h{WIDTH}" stroke="#d0d7de"/>']
        out += [f'<text x="{x - 5:.0f}" y="{up(tick) + 4:.1f}" text-anchor="end">{label(tick)}</text>']
    for tick in ticks(left, right):
        out += [f'<text x="{across(tick):.0f}" y="{y + HEIGHT + 15:.0f}" text-anchor="middle">{label(tick)}</text>']
    out += [f'<text x="{x + WIDTH:.0f}" y="{y + HEIGHT + 30:.0f}" text-anchor="end">{panel.across}</text>']
    for line in panel.lines:
        path = "L".join(f"{across(at):.1f} {up(value):.1f}" for at, value in sorted(line.points))
        out += [f'<path d="M{path}" fill="none" stroke="{line.colour}" stroke-width="1.8"/>']
        out += [
            f'<circle cx="{across(at):.1f}" cy="{up(value):.1f}" r="2.5" fill="{line.colour}"/>'
            for at, value in line.points
        ]
    return out


def svg(title: str, legend: dict[str, str], panels: list[Panel]) -> str:
    """Draw panels side by side below a legend of names and their colours."""
    panels = [panel for panel in panels if any(line.points for line in panel.lines)]
    width, height = LEFT + len(panels) * (WIDTH + GAP), TOP + HEIGHT + 40
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'font-family="sans-serif" font-size="11" fill="#24292f">',
        f"<title>{title}</title>",
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
    ]
    at = float(LEFT)
    for name, colour in legend.items():
        out += [f'<rect x="{at:.0f}" y="12" width="18" height="3" fill="{colour}"/>']
        out += [f'<text x="{at + 24:.0f}" y="17">{name}</text>']
        at += 44 + 6.4 * len(name)
    for number, panel in enumerate(panels):
        out += draw(panel, LEFT + number * (WIDTH + GAP), TOP)
    return "\n".join([*out, "</svg>", ""])
