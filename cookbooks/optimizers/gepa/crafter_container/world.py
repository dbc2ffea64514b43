"""The Crafter environment without rendering: one cached world per seed, and reproducible episodes.

The game is that of the package `crafter`. Three things differ, none of them a rule of the game: nothing is drawn,
objects of a chunk are processed in the order of their positions (a set has no order), and a generated world is copied
for each episode.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from crafter import constants, engine, env, objects, worldgen

AREA = (64, 64)
VIEW = (9, 7)
ACTIONS: tuple[str, ...] = tuple(constants.actions)
ACHIEVEMENTS: tuple[str, ...] = tuple(constants.achievements)
WALKABLE = frozenset(constants.walkable)
VITALS = ("health", "food", "drink", "energy")
MATERIALS: tuple[str | None, ...] = (None, *constants.materials)
CREATURES = {
    objects.Cow: "cow",
    objects.Zombie: "zombie",
    objects.Skeleton: "skeleton",
    objects.Arrow: "arrow",
    objects.Plant: "sapling plant",
}


opensimplex = worldgen.opensimplex


class _Noise(opensimplex.OpenSimplex):  # type: ignore[misc, name-defined]
    """Noise tables as lists, which Python reads faster than arrays."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        for name in ("_perm", "_perm_grad_index3"):
            setattr(self, name, getattr(self, name).tolist())


def generate(seed: int) -> bytes:
    """Return the world of a seed, with its player and creatures, ready to be copied."""
    world = engine.World(AREA, constants.materials, (12, 12))
    world.reset(seed=seed)
    player = objects.Player(world, (AREA[0] // 2, AREA[1] // 2))
    world.add(player)
    internals = opensimplex.internals
    arrays, noise = internals.GRADIENTS3, opensimplex.OpenSimplex
    if not hasattr(internals._noise3, "py_func"):  # With numba it is fast already, and accepts no lists.
        internals.GRADIENTS3, opensimplex.OpenSimplex = arrays.tolist(), _Noise
    try:
        worldgen.generate_world(world, player)
    finally:
        internals.GRADIENTS3, opensimplex.OpenSimplex = arrays, noise
    return pickle.dumps((world, player))


@dataclass(frozen=True, slots=True)
class Thing:
    """A creature, an arrow or a plant in view."""

    kind: str
    pos: tuple[int, int]


class Game(env.Env):  # type: ignore[misc]
    """One episode in a copy of a generated world."""

    def __init__(self, world: bytes) -> None:
        """Start an episode, without the base class's rendering."""
        self._area, self._view = AREA, np.array((9, 9))
        self._world, self._player = pickle.loads(world)  # noqa: S301 (bytes of this process)
        self._step = 0
        self._update_time()

    def act(self, action: str) -> None:
        """Play one step."""
        self._step += 1
        self._update_time()
        player = self._player
        player.action = action
        reach = 2 * int(self._view.max())
        for thing in self._world.objects:
            pos, here = thing.pos, player.pos
            if abs(int(pos[0]) - int(here[0])) + abs(int(pos[1]) - int(here[1])) < reach:
                thing.update()
        if self._step % 10 == 0:
            for chunk, found in self._world.chunks.items():
                self._balance_chunk(chunk, sorted(found, key=_place))

    @property
    def step_count(self) -> int:
        """The number of steps played."""
        return int(self._step)

    @property
    def pos(self) -> tuple[int, int]:
        """The position of the player."""
        return int(self._player.pos[0]), int(self._player.pos[1])

    @property
    def facing(self) -> tuple[int, int]:
        """The direction that the player faces."""
        return int(self._player.facing[0]), int(self._player.facing[1])

    @property
    def inventory(self) -> dict[str, int]:
        """The player's inventory, with health, food, drink and energy."""
        return dict(self._player.inventory)

    @property
    def is_asleep(self) -> bool:
        """Whether the player is asleep and does nothing until it wakes."""
        return bool(self._player.sleeping)

    @property
    def is_dead(self) -> bool:
        """Whether the player has no health left."""
        return bool(self._player.health <= 0)

    @property
    def daylight(self) -> float:
        """The daylight, from 0 to 1."""
        return float(self._world.daylight)

    def counts(self) -> dict[str, int]:
        """Return how often each achievement was reached."""
        return dict(self._player.achievements)

    def view(self) -> tuple[tuple[int, int], list[list[int]], list[Thing]]:
        """Return the view: the position of its corner, the materials by column, and the things."""
        (px, py), (width, height) = self.pos, VIEW
        x0, y0 = max(0, px - width // 2), max(0, py - height // 2)
        x1, y1 = min(AREA[0], px + width // 2 + 1), min(AREA[1], py + height // 2 + 1)
        tiles: list[list[int]] = self._world._mat_map[x0:x1, y0:y1].tolist()
        indices: list[list[int]] = self._world._obj_map[x0:x1, y0:y1].tolist()
        return (x0, y0), tiles, list(self._things(x0, y0, indices))

    def _things(self, x0: int, y0: int, indices: list[list[int]]) -> Iterable[Thing]:
        for dx, column in enumerate(indices):
            for dy, index in enumerate(column):
                thing: Any = self._world._objects[index] if index else None
                if thing is None or thing is self._player:
                    continue
                kind = CREATURES.get(type(thing), "fence")
                if kind == "sapling plant" and thing.ripe:
                    kind = "ripe plant"
                yield Thing(kind, (x0 + dx, y0 + dy))


def _place(thing: Any) -> tuple[int, int]:  # noqa: ANN401 (an object of the package)
    return int(thing.pos[0]), int(thing.pos[1])
