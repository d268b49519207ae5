"""Plain nested data to bytes and back, bit for bit, without pickle: msgpack with arrays, tuples and wide integers."""

from typing import Any

import msgpack
import numpy as np

from simeval.errors import SnapshotError

_ARRAY, _TUPLE, _WIDE_INT, _SCALAR = 1, 2, 3, 4
_PLAIN_KINDS = "biufcSU"


def _encode(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        if value.dtype.kind not in _PLAIN_KINDS:
            raise TypeError(f"cannot encode an array of dtype {value.dtype}; use numbers, booleans or text")
        head = [value.dtype.str, list(value.shape), np.ascontiguousarray(value).tobytes()]
        return msgpack.ExtType(_ARRAY, msgpack.packb(head))
    if isinstance(value, np.generic):
        return msgpack.ExtType(_SCALAR, msgpack.packb([value.dtype.str, value.tobytes()]))
    if type(value) is tuple:
        return msgpack.ExtType(_TUPLE, msgpack.packb(list(value), default=_encode, strict_types=True))
    if type(value) is int:
        return msgpack.ExtType(_WIDE_INT, str(value).encode())
    raise TypeError(f"cannot encode {type(value).__name__}: plain data only (mappings, lists, numbers, text, arrays)")


def _decode(code: int, data: bytes) -> Any:
    if code == _ARRAY:
        dtype, shape, raw = msgpack.unpackb(data)
        return np.frombuffer(raw, dtype=_plain_dtype(dtype)).reshape(shape).copy()
    if code == _SCALAR:
        dtype, raw = msgpack.unpackb(data)
        return np.frombuffer(raw, dtype=_plain_dtype(dtype))[0]
    if code == _TUPLE:
        return tuple(msgpack.unpackb(data, ext_hook=_decode, strict_map_key=False))
    if code == _WIDE_INT:
        return int(data)
    raise ValueError(f"unknown extension {code}")


def _plain_dtype(text: str) -> np.dtype:
    dtype = np.dtype(text)
    if dtype.kind not in _PLAIN_KINDS:
        raise ValueError(f"refused dtype {text}")
    return dtype


def pack(value: Any) -> bytes:
    """Encode nested dicts, lists, tuples, numbers, text, bytes and numpy arrays; anything else is a ``TypeError``."""
    return msgpack.packb(value, default=_encode, strict_types=True)


def unpack(data: bytes) -> Any:
    """The inverse of :func:`pack`; damaged or foreign bytes raise ``SnapshotError``. Nothing in them is executed."""
    try:
        return msgpack.unpackb(data, ext_hook=_decode, strict_map_key=False)
    except (ValueError, TypeError, KeyError, OverflowError, msgpack.UnpackException) as error:
        raise SnapshotError(f"cannot decode {len(data)} bytes: {error}; the data is damaged or foreign") from None
