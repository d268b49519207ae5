"""Settings against the types that their taker declares: what is unknown, missing or of another type is refused.

A configuration is plain data, and what it builds says in its signature what it takes; so settings of the wrong type are
answered in one way everywhere, before anything is built.
"""

import inspect
import types
from collections.abc import Callable, Collection, Iterable, Mapping
from os import PathLike
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np

from simeval.errors import ConfigError, unknown

_WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "a text", Path: "a path"}
_LISTS = {int: "a list of whole numbers", float: "a list of numbers", str: "a name or a list of names"}


def check_declared(
    taker: Callable[..., Any], settings: Mapping[str, Any], at: str = "", apart: Collection[str] = ()
) -> None:
    """Raise ``ConfigError`` unless ``taker`` can be called with ``settings`` by name, each of its declared type.

    ``at`` comes before a setting's name in the error: ``"recipe."``, or ``"world 'tabletop': "``. Mappings with a
    ``_target_`` fit everywhere: what they build is checked where it is built. Of a type that plain data cannot be told
    by, anything fits, and so do the entries of a mapping. ``apart``: arguments of ``taker`` that are no settings.
    """
    parameters = inspect.signature(taker).parameters
    named = [
        name
        for name, p in parameters.items()
        if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY) and name not in apart
    ]
    declared = _hints(taker)
    open_ended = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    for name, value in settings.items():
        if name not in named and not open_ended:
            raise unknown(f"setting of {at.rstrip('.: ') or getattr(taker, '__name__', 'this')}", name, named)
        if name in declared and not _fits(value, declared[name]):
            raise ConfigError(f"{at}{name} is {_said(declared[name])}; received {value!r}")
    for name in named:
        if parameters[name].default is inspect.Parameter.empty and name not in settings:
            raise ConfigError(f"{at}{name} must be given: it has no default")


def _hints(taker: Callable[..., Any]) -> dict[str, Any]:
    try:
        return get_type_hints(taker.__init__ if isinstance(taker, type) else taker)  # type: ignore[misc]
    except NameError:  # a name that its module imports for type checkers alone
        return {}


def _fits(value: Any, declared: Any) -> bool:
    kind, inner = get_origin(declared) or declared, get_args(declared)
    if isinstance(value, Mapping) and "_target_" in value:
        return True
    if kind in (Union, types.UnionType):
        return any(_fits(value, each) for each in inner)
    if kind is Annotated:
        return _fits(value, inner[0])
    if kind is Literal:
        return value in inner
    if kind in (None, types.NoneType):
        return value is None
    if kind is bool:
        return isinstance(value, bool | np.bool_)
    if kind in (int, float):
        numbers = (int, np.integer) if kind is int else (int, float, np.integer, np.floating)
        return isinstance(value, numbers) and not isinstance(value, bool)
    if kind in (str, Path):
        return isinstance(value, str if kind is str else str | PathLike)
    if not isinstance(kind, type) or kind in (Any, object, np.ndarray) or getattr(kind, "_is_protocol", False):
        return True
    if issubclass(kind, Mapping):
        return isinstance(value, Mapping)
    if _is_list(kind):
        if isinstance(value, str):
            return inner[:1] == (str,)  # one name stands for a list of one
        fixed = kind is tuple and inner and Ellipsis not in inner
        if not isinstance(value, list | tuple) or (fixed and len(value) != len(inner)):
            return False
        return all(_fits(each, inner[place if fixed else 0]) for place, each in enumerate(value)) if inner else True
    return isinstance(value, kind)


def _is_list(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Iterable) and not issubclass(kind, str | bytes | Mapping)


def _said(declared: Any) -> str:
    kind, inner = get_origin(declared) or declared, get_args(declared)
    if kind in (Union, types.UnionType):
        listed = any(get_args(each) == (str,) and _is_list(get_origin(each)) for each in inner)
        *others, last = dict.fromkeys(_said(each) for each in inner if not (listed and each is str))
        return f"{', '.join(others)} or {last}" if others else last
    if kind is Annotated:
        return _said(inner[0])
    if kind is Literal:
        return f"one of {', '.join(map(str, inner))}"
    if kind in (None, types.NoneType):
        return "null"
    if isinstance(kind, type) and issubclass(kind, Mapping):
        return "a mapping"
    if _is_list(kind):
        return _LISTS.get(inner[0], "a list") if inner else "a list"
    return _WORDS.get(kind, f"a {getattr(kind, '__name__', kind)}")
