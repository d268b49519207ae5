"""Changes of pictures as the training pipelines of LIBERO's policies make them; pictures are uint8 ``[H, W, 3]``."""

import io
from functools import lru_cache

import numpy as np
from PIL import Image


def pad_bilinear(picture: np.ndarray, side: int) -> np.ndarray:
    """Resized with PIL's bilinear filter and padded with black to ``[side, side, 3]``, the proportions kept."""
    height, width = picture.shape[:2]
    if height == width == side:
        return picture
    ratio = max(height, width) / side
    new_height, new_width = int(height / ratio), int(width / ratio)
    resized = np.asarray(Image.fromarray(picture).resize((new_width, new_height), Image.Resampling.BILINEAR))
    result = np.zeros((side, side, 3), np.uint8)
    top, left = (side - new_height) // 2, (side - new_width) // 2
    result[top : top + new_height, left : left + new_width] = resized
    return result


def lanczos3(picture: np.ndarray, side: int) -> np.ndarray:
    """Resized to ``[side, side, 3]`` with an antialiasing Lanczos filter of radius 3, rounded once at the end."""
    rows, columns = (_lanczos_weights(size, side) for size in picture.shape[:2])
    resized = np.einsum("ah,hwc,bw->abc", rows, picture.astype(np.float32), columns, optimize=True)
    return np.clip(np.rint(resized), 0, 255).astype(np.uint8)


def jpeg_round_trip(picture: np.ndarray) -> np.ndarray:
    """Encoded as JPEG (quality 95, chroma at half resolution) and decoded again."""
    buffer = io.BytesIO()
    Image.fromarray(picture).save(buffer, "JPEG", quality=95, subsampling=2)
    buffer.seek(0)
    return np.array(Image.open(buffer).convert("RGB"))


def centre_crop(picture: np.ndarray, area: float) -> np.ndarray:
    """The centre of a square picture, ``area`` of its area, enlarged bilinearly to the picture's size."""
    side = picture.shape[0]
    scale = np.float32(np.sqrt(area))
    at = ((1 - scale) / 2 + np.arange(side) * scale / (side - 1)) * (side - 1)
    low = np.clip(np.floor(at).astype(int), 0, side - 1)
    high = np.minimum(low + 1, side - 1)
    share = (at - low).astype(np.float32)
    values = picture.astype(np.float32) / 255
    rows = values[low] + (values[high] - values[low]) * share[:, None, None]
    cropped = rows[:, low] + (rows[:, high] - rows[:, low]) * share[None, :, None]
    return (np.clip(cropped, 0, 1) * 255.5).astype(np.uint8)


@lru_cache(maxsize=16)
def _lanczos_weights(size: int, side: int) -> np.ndarray:
    """Weights ``[side, size]`` (float32) of each old pixel in each new one."""
    ratio = max(size / side, 1.0)
    centres = (np.arange(side) + 0.5) * size / side
    distance = (np.arange(size)[None, :] + 0.5 - centres[:, None]) / ratio
    weights = np.where(np.abs(distance) < 3, np.sinc(distance) * np.sinc(distance / 3), 0.0)
    return (weights / weights.sum(axis=1, keepdims=True)).astype(np.float32)
