"""Arrays handed from one process to another through anonymous shared memory, which goes when both have gone."""

import mmap
import os
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

_ALIGNMENT = 64
_PAGE = mmap.PAGESIZE

Layout = list[list[Any]]
"""Of each array: name, dtype, shape, offset [bytes]."""


def new_segment() -> int:
    """The file descriptor of an empty segment: it has no name, so that nothing is left of it whatever happens."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("simeval", os.MFD_CLOEXEC)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


class Segment:
    """One side's view of a segment, in which one process writes and the other reads, in turns."""

    def __init__(self, descriptor: int):
        self._descriptor = descriptor
        self._map: mmap.mmap | None = None
        self._size = 0
        self._form: tuple[Any, ...] | None = None
        self._layout: Layout = []
        self._views: list[np.ndarray] = []

    def write(self, arrays: Mapping[str, np.ndarray]) -> Layout:
        """Copy arrays in; the layout is the very same object as before where it has not changed."""
        form = tuple((name, array.dtype, array.shape) for name, array in arrays.items())
        if form != self._form:
            layout, end = [], 0
            for name, array in arrays.items():
                layout.append([name, _text(name, array.dtype), list(array.shape), end])
                end += -(-array.nbytes // _ALIGNMENT) * _ALIGNMENT
            self._grow(end)
            self._form, self._layout, self._views = form, layout, self._at(layout)
        for view, array in zip(self._views, arrays.values(), strict=True):
            view[...] = array
        return self._layout

    def read(self, layout: Layout) -> dict[str, np.ndarray]:
        """The arrays of a layout, as they lie in shared memory: valid until the writer writes again."""
        if layout is not self._layout:
            self._reach(os.fstat(self._descriptor).st_size)
            self._layout, self._views = layout, self._at(layout)
        return {entry[0]: view for entry, view in zip(layout, self._views, strict=True)}

    def close(self) -> None:
        """Let go of it."""
        self._map, self._views, self._layout, self._form = None, [], [], None
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _at(self, layout: Layout) -> list[np.ndarray]:
        return [np.ndarray(shape, dtype, self._map, offset) for _, dtype, shape, offset in layout]

    def _grow(self, end: int) -> None:
        if end + _ALIGNMENT <= self._size:
            return
        size = -(-max(end + _ALIGNMENT, 2 * self._size) // _PAGE) * _PAGE
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(self._descriptor, 0, size)  # an error now, where ftruncate would mean SIGBUS later
        else:
            os.ftruncate(self._descriptor, size)
        self._reach(size)

    def _reach(self, size: int) -> None:
        if size > self._size:
            self._map = mmap.mmap(self._descriptor, size)  # the old one lives on for as long as views of it do
            self._size = size


def _text(name: str, dtype: np.dtype) -> str:
    if dtype.hasobject or np.dtype(dtype.str) != dtype:
        raise TypeError(f"{name} is of dtype {dtype}; numbers, booleans and text can be shared with another process")
    return dtype.str


def copied(arrays: Mapping[str, np.ndarray], names: Sequence[str] | None = None) -> dict[str, np.ndarray]:
    """Copies that share memory with nothing."""
    return {name: arrays[name].copy() for name in (arrays if names is None else names)}
