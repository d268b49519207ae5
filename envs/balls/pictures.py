"""Pictures of balls in a box, drawn as a batch: smooth discs over a ring, on paper."""

import numpy as np

from envs.balls.physics import RADIUS, distance

ZONE_RADIUS = 0.12
"""Of the ring's middle line [m]: the first ball's middle is to be inside."""
PALETTE = np.array(
    [(219, 51, 46), (41, 107, 204), (51, 158, 77), (237, 173, 26), (133, 71, 168), (26, 163, 173)], dtype=np.float64
)
"""The colour of each ball, RGB."""
_PAPER, _INK = 244, np.array([90.0, 90.0, 98.0])
_HALF_LINE = 0.014


def draw(position: np.ndarray, zone: np.ndarray, size: int) -> np.ndarray:
    """The boxes of ``n`` slots from the side, uint8 [n, size, size, 3], upright.

    ``position`` [n, balls, 2] and ``zone`` [n, 2] are in metres, x to the right and y up; a box fills its picture.
    """
    canvas = np.full((len(position), size + 2, size + 2, 3), _PAPER, np.uint8)
    _ring(canvas, zone, ZONE_RADIUS - _HALF_LINE, ZONE_RADIUS + _HALF_LINE, _INK)
    for ball in reversed(range(position.shape[1])):
        _ring(canvas, position[:, ball], -1.0, RADIUS, PALETTE[ball])
    return canvas[:, 1:-1, 1:-1].copy()


def _ring(canvas: np.ndarray, middle: np.ndarray, inner: float, outer: float, colour: np.ndarray) -> None:
    """Paint what lies between two radii [m] about ``middle`` [n, 2], in place; ``canvas`` has a margin of one pixel."""
    size = canvas.shape[1] - 2
    column, row = middle[:, 0] * size, (1.0 - middle[:, 1]) * size
    span = np.arange(int(np.ceil(2.0 * outer * size)) + 2)
    columns = np.floor(column - outer * size).astype(int)[:, None] + span
    rows = np.floor(row - outer * size).astype(int)[:, None] + span
    offset = np.empty((len(middle), len(span), len(span), 2))
    offset[..., 0] = (columns + 0.5 - column[:, None])[:, None, :]
    offset[..., 1] = (rows + 0.5 - row[:, None])[:, :, None]
    radius = distance(offset)
    cover = np.clip(outer * size - radius + 0.5, 0.0, 1.0) * np.clip(radius - inner * size + 0.5, 0.0, 1.0)
    everyone = np.arange(len(middle))[:, None, None]
    # The margin takes what a patch paints one pixel beyond the picture; nothing reaches farther.
    where = everyone, np.clip(rows + 1, 0, size + 1)[:, :, None], np.clip(columns + 1, 0, size + 1)[:, None, :]
    beneath = canvas[where].astype(np.float64)
    canvas[where] = np.rint(beneath + cover[..., None] * (colour - beneath)).astype(np.uint8)
