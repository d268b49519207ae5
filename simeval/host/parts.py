"""Nested mappings of arrays as two flat things that a message can carry: plain data, and arrays by name."""

from collections.abc import Mapping
from typing import Any

import numpy as np


def taken_apart(tree: Mapping[str, Any]) -> tuple[Any, dict[str, np.ndarray]]:
    """``tree``, each array in it replaced by its name, and the arrays; none stays none."""
    arrays: dict[str, np.ndarray] = {}

    def take(value: Any) -> Any:
        if value is None:
            return None
        if isinstance(value, Mapping):
            return {key: take(inner) for key, inner in value.items()}
        name = str(len(arrays))
        arrays[name] = np.asarray(value)
        return name

    return take(tree), arrays


def put_together(plain: Any, arrays: Mapping[str, np.ndarray]) -> Any:
    """The inverse of :func:`taken_apart`, its arrays fresh."""
    if plain is None:
        return None
    if isinstance(plain, Mapping):
        return {key: put_together(inner, arrays) for key, inner in plain.items()}
    return arrays[plain].copy()
