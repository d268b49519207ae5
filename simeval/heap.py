"""The heaps in which HDF5 keeps text of variable length: walked before HDF5 does, which on a damaged one never ends.

Traces of today have none. Of an earlier one the whole file is looked through, once.
"""

import mmap
import os
import struct
from functools import lru_cache
from pathlib import Path

from simeval.errors import TraceError

_COLLECTION = struct.Struct("<4sB3xQ")
"""Signature, version and size of a collection of objects."""
_OBJECT = struct.Struct("<HHxxxxQ")
"""Number, references and size of an object, which follows; number 0 is free space, its size that of all of it."""
_SIGNATURE = b"GCOL\x01"


def check_heaps(path: Path) -> None:
    """Raise ``TraceError`` where an object of a heap would not lead to the next, or beyond its heap."""
    state = os.stat(path)
    place = _damaged(path, state.st_ino, state.st_mtime_ns, state.st_size)
    if place is not None:
        raise TraceError(
            f"{path}: the heap at byte {place}, where its text is, is damaged and would be read without end; move the "
            "file out of the folder and resume the run to make its episodes again"
        )


@lru_cache(1024)
def _damaged(path: Path, inode: int, changed: int, size: int) -> int | None:
    """Where a damaged heap begins, if there is one; what the file is now is part of the question."""
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        place = data.find(_SIGNATURE)
        while place >= 0:
            if not _ends(data, place):
                return place
            place = data.find(_SIGNATURE, place + 1)
    return None


def _ends(data: mmap.mmap, begin: int) -> bool:
    if begin + _COLLECTION.size > len(data):
        return False
    end = begin + _COLLECTION.unpack_from(data, begin)[2]
    if end > len(data):
        return False
    at = begin + _COLLECTION.size
    while at + _OBJECT.size <= end:
        number, _, size = _OBJECT.unpack_from(data, at)
        step = _OBJECT.size + -(-size // 8) * 8 if number else size
        if step < _OBJECT.size or at + step > end:
            return False
        at += step
    return True
