"""Messages between policies and their servers: openpi's msgpack with arrays, and OpenVLA's JSON with arrays.

openpi: an array is a map with the bytes keys ``__ndarray__``, ``data`` (C order), ``dtype``, ``shape``, a numpy scalar
one with ``__npgeneric__``, ``data``, ``dtype``. JSON (json-numpy's): ``__numpy__`` (base64), ``dtype``, ``shape``.
Neither carries objects, and nothing in a message is executed.
"""

import base64
import binascii
import json
from collections.abc import Mapping
from typing import Any

import msgpack
import numpy as np

from simeval.errors import SimevalError
from simeval.noise import StepKey, Stream

_KINDS = "biufSU"


class MessageError(SimevalError):
    """A message that cannot be read, or that is not what was to be said."""


def pack(message: Any) -> bytes:
    """Nested maps, lists, numbers, text, bytes and arrays as openpi writes them; ``MessageError`` for anything else."""
    try:
        return msgpack.packb(message, default=_to_map)
    except (TypeError, ValueError, OverflowError) as error:
        raise MessageError(f"this cannot be sent: {error}") from error


def unpack(data: bytes) -> Any:
    """The inverse of :func:`pack`; arrays are read-only views of ``data``."""
    try:
        return msgpack.unpackb(data, object_hook=_from_map)
    except Exception as error:  # what damage can make msgpack and numpy raise has no end
        raise MessageError(
            f"{len(data)} bytes that are no openpi message ({type(error).__name__}: {error}); expected msgpack of a "
            "map with numpy arrays"
        ) from error


def _to_map(value: Any) -> dict[bytes, Any]:
    if isinstance(value, np.ndarray | np.generic):
        _check(value.dtype)
        if isinstance(value, np.ndarray):
            return {b"__ndarray__": True, b"data": value.tobytes(), b"dtype": value.dtype.str, b"shape": value.shape}
        return {b"__npgeneric__": True, b"data": value.item(), b"dtype": value.dtype.str}
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"a {type(value).__name__} is no number, text, list, map or array")


def _from_map(value: dict[Any, Any]) -> Any:
    if b"__ndarray__" in value:
        array = np.frombuffer(value[b"data"], _check(np.dtype(value[b"dtype"])))
        return array.reshape([int(side) for side in value[b"shape"]])
    if b"__npgeneric__" in value:
        return _check(np.dtype(value[b"dtype"])).type(value[b"data"])
    return value


def _check(dtype: np.dtype) -> np.dtype:
    if dtype.kind not in _KINDS or dtype.itemsize == 0:
        raise ValueError(f"arrays of {dtype} are not sent; use numbers, booleans or text")
    return dtype


def to_json(value: Any) -> str:
    """JSON text in which arrays are json-numpy's maps; ``MessageError`` for what is neither JSON nor array."""

    def encode(item: Any) -> dict[str, Any]:
        if not isinstance(item, np.ndarray | np.generic):
            raise TypeError(f"a {type(item).__name__} is no JSON")
        _check(item.dtype)
        data = base64.b64encode(item.tobytes()).decode()
        return {"__numpy__": data, "dtype": item.dtype.str, "shape": list(item.shape)}

    try:
        return json.dumps(value, default=encode)
    except (TypeError, ValueError) as error:
        raise MessageError(f"this cannot be sent: {error}") from error


def from_json(text: str | bytes) -> Any:
    """The inverse of :func:`to_json`; ``MessageError`` where it is none."""

    def decode(item: dict[str, Any]) -> Any:
        if "__numpy__" not in item:
            return item
        raw = base64.b64decode(item["__numpy__"], validate=True)
        array = np.frombuffer(raw, _check(np.dtype(item["dtype"]))).reshape([int(side) for side in item["shape"]])
        return array if array.ndim else array[()]

    try:
        return json.loads(text, object_hook=decode)
    except (ValueError, TypeError, KeyError, RecursionError, binascii.Error) as error:
        raise MessageError(
            f"{len(text)} bytes that are no JSON with arrays ({type(error).__name__}: {error})"
        ) from error


def key_text(key: StepKey) -> str:
    """The ``noise_key`` entry of an observation: ``<seed>:<stream>:<step>``."""
    return f"{key.stream.seed}:{key.stream.name}:{key.step}"


def read_key(text: Any) -> StepKey:
    """The inverse of :func:`key_text`."""
    parts = text.split(":", 1) if isinstance(text, str) else []
    name, colon, step = parts[-1].rpartition(":") if parts else ("", "", "")
    try:
        if len(parts) != 2 or not colon or int(step) < 0:
            raise ValueError
        return Stream(int(parts[0]), name).key(int(step))
    except ValueError:
        raise MessageError(f"noise_key is text as in '17:policy:42' (seed, stream, step); received {text!r}") from None
