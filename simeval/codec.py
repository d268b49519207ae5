"""Plain nested data to bytes and back, bit for bit, without pickle: msgpack with arrays, tuples and wide integers."""

from typing import Any

import msgpack
import numpy as np

from simeval.errors import SnapshotError

_ARRAY, _TUPLE, _WIDE_INT, _SCALAR = 1, 2, 3, 4
_PLAIN_KINDS = "biufcSU"


_HEAD = msgpack.Packer(autoreset=True)
"""Of arrays: plain values only, so that it calls nothing, and is never entered while it packs."""


def _encode(value: Any) -> Any:
    if type(value) is np.ndarray:
        head = [_plain(value.dtype), value.shape, value.tobytes()]
        return msgpack.ExtType(_ARRAY, _HEAD.pack(head))
    if isinstance(value, np.generic):
        return msgpack.ExtType(_SCALAR, msgpack.packb([_plain(value.dtype), value.tobytes()]))
    if type(value) is tuple:
        return msgpack.ExtType(_TUPLE, msgpack.packb(list(value), default=_encode, strict_types=True))
    if type(value) is int:
        return msgpack.ExtType(_WIDE_INT, str(value).encode())
    if isinstance(value, np.ndarray):
        raise TypeError(f"cannot encode {_name(value)}: of a subclass of ndarray only the values could be kept")
    raise TypeError(f"cannot encode {_name(value)}: plain data only (mappings, lists, numbers, text, arrays)")


def _name(value: Any) -> str:
    return f"a {type(value).__module__}.{type(value).__qualname__}"


def _plain(dtype: np.dtype) -> str:
    """The text that stands for ``dtype`` and for nothing else."""
    if dtype.kind not in _PLAIN_KINDS or dtype.itemsize == 0:
        raise TypeError(f"cannot encode values of dtype {dtype}; use numbers, booleans or text")
    return dtype.str


def _decode(code: int, data: bytes) -> Any:
    if code == _ARRAY:
        dtype, shape, raw = msgpack.unpackb(data)
        if not all(type(size) is int and size >= 0 for size in shape):
            raise ValueError(f"refused shape {shape}")
        return np.frombuffer(raw, dtype=_dtype(dtype)).reshape(shape).copy()
    if code == _SCALAR:
        dtype, raw = msgpack.unpackb(data)
        (scalar,) = np.frombuffer(raw, dtype=_dtype(dtype))
        return scalar
    if code == _TUPLE:
        return tuple(msgpack.unpackb(data, ext_hook=_decode, strict_map_key=False))
    if code == _WIDE_INT:
        return int(data)
    raise ValueError(f"unknown extension {code}")


def _dtype(text: str) -> np.dtype:
    dtype = np.dtype(text)
    if _plain(dtype) != text:
        raise ValueError(f"refused dtype {text!r}")
    return dtype


def pack(value: Any) -> bytes:
    """Encode nested dicts, lists, tuples, numbers, text, bytes and numpy arrays.

    What could not be given back exactly is a ``TypeError``: other objects, subclasses of ndarray (a masked array would
    lose its mask), structured, object and date dtypes.
    """
    return msgpack.packb(value, default=_encode, strict_types=True)


def unpack(data: bytes) -> Any:
    """The inverse of :func:`pack`; damaged or foreign bytes raise ``SnapshotError``. Nothing in them is executed."""
    try:
        return msgpack.unpackb(data, ext_hook=_decode, strict_map_key=False)
    except Exception as error:  # what damage can make numpy and msgpack raise has no end: SyntaxError, IndexError, ...
        text = f"{type(error).__name__}: {error}"
        raise SnapshotError(f"cannot decode {len(data)} bytes: {text}; the data is damaged or foreign") from error
