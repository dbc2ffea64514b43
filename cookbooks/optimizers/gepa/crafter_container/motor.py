"""The player's motor control: it observes, remembers, walks, faces and acts. It has no recipe, no order and no number.

It remembers every tile that was in view. It walks only on safe tiles that it has seen, and so never into lava or water.
It cannot walk to objects that were never in view.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from crafter_container.rules import CREATURES, MAKE, PLACE, PRESS, Rule
from crafter_container.world import AREA, MATERIALS, VIEW, WALKABLE, Game, Thing

# Positions are numbers in a grid with a border of one tile, so that edges need no check.
STRIDE = AREA[1] + 2
MOVES = {"move_left": -STRIDE, "move_right": STRIDE, "move_up": -1, "move_down": 1}
STEPS = tuple(MOVES.items())
GROUND = tuple(name in WALKABLE for name in MATERIALS)
UNKNOWN = 0
WINDOW = tuple(
    dx * STRIDE + dy
    for dx in range(-(VIEW[0] // 2), VIEW[0] // 2 + 1)
    for dy in range(-(VIEW[1] // 2), VIEW[1] // 2 + 1)
)
CHOICES = 10
Targets = Callable[[int], bool]


class Blocked(Exception):  # noqa: N818 (not an error: the next rule is tried)
    """A rule cannot be executed now; the text says why."""


def place_of(pos: tuple[int, int]) -> int:
    """Return the number of a position."""
    return (pos[0] + 1) * STRIDE + pos[1] + 1


class Body:
    """The player's knowledge of its world, and its movement."""

    def __init__(self, game: Game) -> None:
        """Start in a world that was never seen."""
        self.game = game
        self.tiles = [UNKNOWN] * (STRIDE * (AREA[0] + 2))
        self.seen: dict[str, set[int]] = {name: set() for name in MATERIALS if name}
        self.things: list[Thing] = []
        self.here = self.ahead = 0
        self._taken: frozenset[int] = frozenset()
        self._path: list[str] = []
        self._path_for: object = None
        self.look()

    def look(self) -> None:
        """Update the knowledge with the tiles in view."""
        (x0, y0), columns, self.things = self.game.view()
        for dx, column in enumerate(columns):
            place = place_of((x0 + dx, y0))
            for material in column:
                known = self.tiles[place]
                if known != material:
                    if known:
                        self.seen[MATERIALS[known] or ""].discard(place)
                    self.tiles[place] = material
                    self.seen[MATERIALS[material] or ""].add(place)
                place += 1
        self._taken = frozenset(place_of(thing.pos) for thing in self.things)
        self.here = place_of(self.game.pos)
        facing = self.game.facing
        self.ahead = self.here + facing[0] * STRIDE + facing[1]

    def is_free(self, place: int) -> bool:
        """Return whether the player can stand there, as far as it knows."""
        return GROUND[self.tiles[place]] and place not in self._taken

    def knows(self, what: str) -> bool:
        """Return whether a material was seen, or a creature is in view."""
        if what in CREATURES:
            return any(thing.kind == what for thing in self.things)
        return bool(self.seen.get(what))

    def distance(self, what: str) -> int:
        """Return the steps to the nearest object of a kind in view, ignoring obstacles; 99 if there is none."""
        x, y = self.game.pos
        if what in CREATURES:
            places = [thing.pos for thing in self.things if thing.kind == what]
        else:
            places = [(place // STRIDE - 1, place % STRIDE - 1) for place in self.seen[what]]
        return min((abs(a - x) + abs(b - y) for a, b in places), default=99)

    def is_beside(self, materials: tuple[str, ...]) -> bool:
        """Return whether the player stands where it can use all of these."""
        return self.here in self._beside(materials) if materials else True

    def follow(self, rule: Rule) -> str:
        """Return the next action of a rule, or raise Blocked."""
        if rule.verb == PRESS:
            return self._walk(rule, self._targets(rule.what), rule.near) or "do"
        if rule.verb == PLACE:
            return self._walk(rule, self._is_open(rule.on), rule.near) or f"place_{rule.what}"
        if rule.verb == MAKE:
            if rule.near and not self.is_beside(rule.near):
                return self._walk(rule, None, rule.near) or "noop"
            return f"make_{rule.what.replace(' ', '_')}"
        return "sleep"

    def explore(self) -> str:
        """Return the next step towards tiles that were never in view."""
        if self._path_for != "explore" or not self._is_path_valid():
            self._path_for, self._path = "explore", self._path_to_unknown()
        return self._path.pop(0) if self._path else "noop"

    def _targets(self, what: str) -> Targets:
        """Return a predicate: whether a position holds what a rule names."""
        if what in CREATURES:
            targets = {place_of(thing.pos) for thing in self.things if thing.kind == what}
        else:
            targets = self.seen[what]
        if not targets:
            raise Blocked(f"no {what} in sight")
        return targets.__contains__

    def _is_open(self, material: str) -> Targets:
        """Return a predicate: whether something can be placed there (free ground, or the rule's material)."""
        if not material:
            return self.is_free
        places = self.seen[material]
        if not places:
            raise Blocked(f"no {material} in sight")
        return lambda place: place in places and place not in self._taken

    def _beside(self, materials: tuple[str, ...]) -> set[int]:
        """Return the positions with all of these among the eight tiles around."""
        found: set[int] | None = None
        for name in materials:
            around = {place + dx * STRIDE + dy for place in self.seen[name] for dx in (-1, 0, 1) for dy in (-1, 0, 1)}
            found = around if found is None else found & around
        return found or set()

    def _walk(self, rule: Rule, targets: Targets | None, near: tuple[str, ...]) -> str | None:
        """Return the next step to a position that faces a target and is beside `near`; `None` if the player is there.

        Without targets, the position is enough.
        """
        stands: set[int] | None = None
        if near:
            missing = [name for name in near if not self.seen[name]]
            if missing:
                raise Blocked(f"no {missing[0]} in sight")
            stands = self._beside(near)
        is_place = (stands is None or self.here in stands) and self.tiles[self.here] != UNKNOWN
        if targets is not None and is_place and targets(self.ahead):
            return None
        if self._path_for != rule or not self._is_path_valid() or rule.what in CREATURES:
            path = self._search(self._goal(targets, stands), targets, stands)
            if path is None:
                raise Blocked(f"no way to {rule.what if targets is not None and not near else ' and '.join(near)}")
            self._path_for, self._path = rule, path
        return self._path.pop(0) if self._path else None

    def _is_path_valid(self) -> bool:
        """Return whether the next step of the path, or its last turn, is still possible."""
        if not self._path:
            return False
        return len(self._path) == 1 or self.is_free(self.here + MOVES[self._path[0]])

    def _goal(self, targets: Targets | None, stands: set[int] | None) -> Callable[[int, str], list[str] | None]:
        """Return a function of a position and the entering move: `None`, or the turn that is still needed."""

        def test(place: int, move: str) -> list[str] | None:
            if stands is not None and place not in stands:
                return None
            if targets is None or targets(place + MOVES[move]):
                return []
            for turn, step in STEPS:
                if targets(place + step) and not self.is_free(place + step):
                    return [turn]
            return None

        return test

    def _search(
        self, goal: Callable[[int, str], list[str] | None], targets: Targets | None, stands: set[int] | None
    ) -> list[str] | None:
        if targets is not None and (stands is None or self.here in stands):
            for turn, step in STEPS:
                if targets(self.here + step) and not self.is_free(self.here + step):
                    return [turn]
        came: dict[int, tuple[int, str]] = {self.here: (0, "")}
        queue = deque([self.here])
        while queue:
            place = queue.popleft()
            for move, step in STEPS:
                entered = place + step
                if not GROUND[self.tiles[entered]] or entered in self._taken:
                    continue
                turns = goal(entered, move)
                if turns is not None:
                    return [*self._back(came, place), move, *turns]
                if entered not in came:
                    came[entered] = (place, move)
                    queue.append(entered)
        return None

    def _back(self, came: dict[int, tuple[int, str]], place: int) -> list[str]:
        moves = []
        while place != self.here:
            place, move = came[place]
            moves.append(move)
        return moves[::-1]

    def _path_to_unknown(self) -> list[str]:
        """Return the path to a nearby position at the edge of the known area, preferring unknown surroundings."""
        came: dict[int, tuple[int, str]] = {self.here: (0, "")}
        queue = deque([(self.here, 0)])
        best: tuple[float, int] | None = None
        choices = 0
        while queue and choices < CHOICES:
            place, length = queue.popleft()
            if length and any(self.tiles[place + step] == UNKNOWN and self._inside(place + step) for _, step in STEPS):
                fresh = sum(
                    1
                    for offset in WINDOW
                    if 0 <= place + offset < len(self.tiles) and self.tiles[place + offset] == UNKNOWN
                )
                choices += 1
                if best is None or fresh - 2.0 * length > best[0]:
                    best = (fresh - 2.0 * length, place)
            for move, step in STEPS:
                entered = place + step
                if entered not in came and GROUND[self.tiles[entered]] and entered not in self._taken:
                    came[entered] = (place, move)
                    queue.append((entered, length + 1))
        return self._back(came, best[1]) if best else []

    def _inside(self, place: int) -> bool:
        return 1 <= place // STRIDE <= AREA[0] and 1 <= place % STRIDE <= AREA[1]
