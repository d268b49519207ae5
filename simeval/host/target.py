"""Objects from plain data that names their class by ``_target_``, as configurations do, without Hydra."""

import importlib
from collections.abc import Mapping
from typing import Any

from simeval.declared import check_declared
from simeval.errors import ConfigError, MissingPackageError, SimevalError

_HYDRAS_OWN = ("_convert_", "_recursive_")
"""Entries that tell Hydra how to build, and make no difference to plain data."""


def build(config: Any, kind: type, what: str) -> Any:
    """The ``kind`` that ``config`` describes, those within it first; ``ConfigError`` where something is no ``kind``."""
    if not isinstance(config, Mapping) or "_target_" not in config:
        raise ConfigError(f"{what}: its configuration names no class (_target_); received {config!r}")
    target = config["_target_"]
    found = locate(target, what)
    if not makes(found, kind):
        raise ConfigError(
            f"{what}: _target_ {target} is no {kind.__name__}; name a subclass of simeval.{kind.__name__}"
        )
    settings = {key: value for key, value in config.items() if _is_argument(key, what)}
    check_declared(found, settings, f"{what}: ")
    try:
        built = found(**{key: _value(value, kind, what) for key, value in settings.items()})
    except SimevalError:
        raise
    except ModuleNotFoundError as error:
        raise MissingPackageError(f"{what} needs {error.name}, which", str(error.name)) from error
    except Exception as error:
        raise ConfigError(f"{what}: {type(error).__name__}: {' '.join(str(error).split())}") from error
    if not isinstance(built, kind):
        raise ConfigError(f"{what}: {target} gives a {type(built).__name__}, expected a {kind.__name__}")
    return built


def makes(found: Any, kind: type) -> bool:
    """Whether calling ``found`` is meant to give a ``kind``: a subclass, its constructor, or declared to return one."""
    if isinstance(found, type):
        return issubclass(found, kind)
    owner = getattr(found, "__self__", None)
    returned = getattr(found, "__annotations__", {}).get("return")
    return returned in (kind, kind.__name__) or (isinstance(owner, type) and issubclass(owner, kind))


def locate(target: Any, what: str) -> Any:
    """What a dotted path names: the longest part of it that is a module is imported, the rest are attributes."""
    parts = str(target).split(".")
    for count in range(len(parts) - 1, 0, -1):
        name = ".".join(parts[:count])
        try:
            found: Any = importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or not (name == error.name or name.startswith(f"{error.name}.")):
                raise MissingPackageError(f"{what} needs {error.name}, which", str(error.name)) from error
            continue
        except Exception as error:
            reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
            raise ConfigError(f"{what}: importing {name} fails with {reason}") from error
        for part in parts[count:]:
            if not hasattr(found, part):
                raise _nothing(target, what)
            found = getattr(found, part)
        return found
    raise _nothing(target, what)


def _nothing(target: Any, what: str) -> ConfigError:
    return ConfigError(
        f"{what}: there is no {target!r} to import; give --config-dir FOLDER for a module of one's own in the "
        "working directory or beside that folder, or install it"
    )


def _is_argument(key: str, what: str) -> bool:
    if key in ("_target_", *_HYDRAS_OWN):
        return False
    if key.startswith("_") and key.endswith("_"):
        raise ConfigError(f"{what}: {key} is not understood where a World is built in another process")
    return True


def _value(value: Any, kind: type, what: str) -> Any:
    if isinstance(value, Mapping):
        if "_target_" in value:
            return build(value, kind, what)
        return {key: _value(inner, kind, what) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_value(inner, kind, what) for inner in value]
    return value
