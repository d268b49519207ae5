"""Equal balls in a box with elastic walls: a short step of a batch, each flight a parabola, each impact at its time.

Every number is made by elementwise arithmetic, so that a row's bits do not depend on the other rows.
"""

from itertools import combinations

import numpy as np

RADIUS = 0.08
"""Of every ball [m]; each weighs 1 kg, and the box is 1 m wide and high."""
LOW, HIGH = RADIUS, 1.0 - RADIUS
"""Where the middle of a ball can be, along each axis [m]."""
_TINY = 1e-300


def substep(
    position: np.ndarray, velocity: np.ndarray, acceleration: np.ndarray, restitution: float, dt: float
) -> tuple[np.ndarray, np.ndarray]:
    """Positions and velocities [n, balls, 2] after ``dt`` [s] under a constant acceleration, as fresh arrays."""
    position, velocity = fly(position, velocity, acceleration, restitution, dt)
    for pair in combinations(range(position.shape[1]), 2):
        _collide(position, velocity, acceleration, restitution, dt, pair)
    return position, velocity


def fly(
    position: np.ndarray, velocity: np.ndarray, acceleration: np.ndarray, restitution: float, dt: float | np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Positions and velocities [...] along single axes after ``dt``, thrown back by the walls alone.

    An impact happens at its own instant: the speed at the wall is that of the parabola there. What would bounce again
    within ``dt`` comes to rest.
    """
    after = position + velocity * dt + 0.5 * acceleration * (dt * dt)
    speed = velocity + acceleration * dt
    out = (after < LOW) | (after > HIGH)
    if not out.any():
        return after, speed
    wall = np.where(after[out] < LOW, LOW, HIGH)
    inward = np.where(after[out] < LOW, 1.0, -1.0)
    height = np.maximum(inward * (position[out] - wall), 0.0)
    rise, pull = inward * velocity[out], inward * acceleration[out]
    impact = np.sqrt(np.maximum(rise * rise - 2.0 * pull * height, 0.0))
    whole = np.broadcast_to(dt, after.shape)[out]
    left = whole - np.minimum(2.0 * height / np.maximum(impact - rise, _TINY), whole)
    back = restitution * impact
    height, rise = back * left + 0.5 * pull * (left * left), back + pull * left
    rests = height < 0.0
    after[out] = wall + inward * np.where(rests, 0.0, height)
    speed[out] = inward * np.where(rests, 0.0, rise)
    return after, speed


def distance(offset: np.ndarray) -> np.ndarray:
    """Length [...] of vectors [..., 2]."""
    return np.sqrt(_dot(offset, offset))


def _dot(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    return one[..., 0] * other[..., 0] + one[..., 1] * other[..., 1]


def _collide(
    position: np.ndarray,
    velocity: np.ndarray,
    acceleration: np.ndarray,
    restitution: float,
    dt: float,
    pair: tuple[int, int],
) -> None:
    """Let the two balls of a ``pair`` that met during the last ``dt`` part again, in place.

    They go back to the instant at which they touched, exchange momentum there, and fly on for the rest of the time.
    """
    one, other = pair
    offset, closing = position[:, other] - position[:, one], velocity[:, other] - velocity[:, one]
    depth, rate = 4.0 * RADIUS * RADIUS - _dot(offset, offset), _dot(offset, closing)
    rows = np.flatnonzero((depth > 0.0) & (rate < 0.0))
    if not len(rows):
        return
    depth, rate, closing = depth[rows], rate[rows], closing[rows]
    since = np.minimum(depth / (np.sqrt(rate * rate + _dot(closing, closing) * depth) - rate), dt)[:, None, None]
    met = rows[:, None], np.array(pair)
    pull = acceleration[met]
    place = np.clip(position[met] - velocity[met] * since + 0.5 * pull * (since * since), LOW, HIGH)
    speed = velocity[met] - pull * since
    normal = _unit(place[:, 1] - place[:, 0])
    approach = np.minimum(_dot(speed[:, 1] - speed[:, 0], normal), 0.0)
    kick = 0.5 * (1.0 + restitution) * approach[:, None] * normal
    speed[:, 0] += kick
    speed[:, 1] -= kick
    place, speed = fly(place, speed, pull, restitution, since)
    overlap = np.maximum(2.0 * RADIUS - distance(place[:, 1] - place[:, 0]), 0.0)
    apart = 0.5 * overlap[:, None] * _unit(place[:, 1] - place[:, 0])
    place[:, 0] -= apart
    place[:, 1] += apart
    place = np.clip(place, LOW, HIGH)
    # Where a wall was met at the same time, going back in time was wrong about it: no energy may come of that.
    kinetic = _energy(speed, place, 0.0)
    gained = _energy(speed, place, pull) - _energy(velocity[met], position[met], pull)
    kept = np.maximum(kinetic - np.maximum(gained, 0.0), 0.0) / np.maximum(kinetic, _TINY)
    position[met], velocity[met] = place, speed * np.sqrt(kept)[:, None, None]


def _energy(speed: np.ndarray, place: np.ndarray, pull: np.ndarray | float) -> np.ndarray:
    """Kinetic energy [n] of two balls each, and potential in a field of accelerations ``pull`` [n, 2, 2]."""
    each = 0.5 * _dot(speed, speed) - _dot(pull * place, np.ones(2))
    return each[:, 0] + each[:, 1]


def _unit(offset: np.ndarray) -> np.ndarray:
    """Unit vectors along ``offset`` [n, 2]; along y where two balls have the same middle."""
    length = distance(offset)[:, None]
    return np.where(length > 0.0, offset / np.maximum(length, _TINY), [0.0, 1.0])
