"""Configuration: Hydra's grammar over ``configs/``, resolved, with errors in one line."""

import re
import sys
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_module
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from simeval.errors import ConfigError, unknown

GROUPS = ("world", "policy")
"""Groups that take several names, ``policy=expert,uniform``: each becomes an entry of ``policies`` (``worlds``)."""

AXES = "perturbation"
"""The group of perturbation axes and presets, ``perturbation=libero-ctrl`` or ``perturbation=camera,lighting``."""
_PLURAL = {"world": "worlds", "policy": "policies"}

HOST = re.compile(r"(world|policy|(worlds|policies)\.[^.=]+)\.host(\.[^=]*)?")
"""Settings that every World and policy has, whether or not its file says so (docs/hosts.md)."""


def compose_config(name: str, overrides: Sequence[str], config_dir: str | None = None) -> DictConfig:
    """The configuration ``configs/<name>.yaml`` with command-line overrides; ``ConfigError`` says what is wrong.

    ``config_dir``: a folder of one's own with further ``world/``, ``policy/``, ``experiment/`` … files, which may name
    classes of modules in the working directory and beside that folder.
    """
    expanded = [part for override in overrides for part in _expand(override)]
    if config_dir is not None:
        expanded.append(f"hydra.searchpath=[file://{own_modules(config_dir)}]")
    GlobalHydra.instance().clear()
    try:
        with initialize_config_module("configs", version_base="1.3"):
            config = compose(name, expanded)
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        raise _translate(error, name, expanded, config_dir) from None
    _check_sections(name, config)
    return config


def _check_sections(name: str, config: DictConfig) -> None:
    """Raise ``ConfigError`` unless the sections of ``configs/<name>.yaml`` are there, with settings that resolve."""
    there = plain(config)
    for key, wanted in sections(name).items():
        found = there.get(key)
        listed = ", ".join(f"{key}.{setting}" for setting in wanted)
        if not isinstance(found, dict):
            raise ConfigError(f"{key}={found}: {key} is a section, whose settings are {listed}; set these")
        if dropped := [f"{key}.{setting}" for setting in wanted if setting not in found]:
            raise ConfigError(f"{', '.join(dropped)} cannot be dropped; set {dropped[0]}=… instead")
        try:
            OmegaConf.to_container(config[key], resolve=True)
        except OmegaConfBaseException as error:
            raise ConfigError(f"{key}: {' '.join(str(error).split())}") from None


def sections(name: str) -> dict[str, dict[str, Any]]:
    """The sections of ``configs/<name>.yaml``, as shipped: name -> setting -> value."""
    base = OmegaConf.create(resources.files("configs").joinpath(f"{name}.yaml").read_text(encoding="utf-8"))
    return {key: values for key, values in plain(base).items() if isinstance(values, dict) and values}


def own_modules(config_dir: str) -> Path:
    """The folder of configurations of one's own; modules of the working directory, and beside it, can be imported."""
    folder = Path(config_dir).resolve()
    if not folder.is_dir():
        raise ConfigError(f"--config-dir {config_dir} is not a folder")
    sys.path += [place for place in dict.fromkeys(map(str, (Path.cwd(), folder.parent))) if place not in sys.path]
    return folder


def run_settings(overrides: Sequence[str]) -> dict[str, Any]:
    """The ``run.…`` settings among overrides, as Hydra's grammar reads them."""
    own = [override for override in overrides if override.lstrip("+").startswith("run.")]
    try:
        parsed = OverridesParser.create().parse_overrides(own)
        return {item.key_or_group: item.value() for item in parsed}
    except HydraException as error:
        raise ConfigError(f"{' '.join(str(error).split())} (quote what has spaces: \"run.dir='my run'\")") from None


def _expand(override: str) -> list[str]:
    """``policy=a,b`` and ``perturbation=a,b`` as one entry per name; everything else as it is."""
    group, equals, value = override.partition("=")
    if group == AXES and equals and value != "null":
        names = _listed(override, value.strip("[]"))
        if len(names) == 1 and _is_preset(names[0]):
            return [override]
        return [f"~{group}", *(f"+{group}@{group}.{name}={name}" for name in names)]
    if group in GROUPS and equals and "," in value and not value.startswith(("[", "{")):
        names = _listed(override, value)
        return [f"~{group}", *(f"+{group}@{_PLURAL[group]}.{name}={name}" for name in names)]
    return [f"++{override}"] if HOST.fullmatch(group) else [override]


def _is_preset(name: str) -> bool:
    """Whether a shipped entry of the perturbation group is a mapping of axes, and no axis itself."""
    entry = resources.files("configs").joinpath(AXES, f"{name}.yaml")
    return entry.is_file() and "_target_" not in OmegaConf.create(entry.read_text(encoding="utf-8"))


def _listed(override: str, value: str) -> list[str]:
    """The names of a list with commas; ``ConfigError`` for one that comes twice."""
    names = [name.strip() for name in value.split(",") if name.strip()]
    if len(set(names)) != len(names):
        raise ConfigError(f"{override} names something twice")
    return names


def _translate(error: Exception, name: str, overrides: Sequence[str], config_dir: str | None) -> ConfigError:
    text = " ".join(str(error).split())
    missing = re.search(r"Could not find '([^']+)'", text) or re.search(r"Could not load '([^']+)'", text)
    if missing:
        group, _, option = missing.group(1).rpartition("/")
        own = "" if config_dir is not None else "; a file of your own is found with --config-dir FOLDER"
        return ConfigError(f"{unknown(group or 'configuration', option, options_of(group, config_dir))}{own}")
    if "Config group override must be a string or a list" in text:
        return _no_name(text, overrides, config_dir)
    if dropped := re.search(r"Could not delete from config\. '([^']+)'", text):
        return ConfigError(f"~{dropped.group(1)} drops nothing: there is no such setting, or it is null already")
    setting = re.search(r"Could not override '([^']+)'", text)
    if setting and any(part.lstrip("+~").startswith(setting.group(1)) for part in overrides):
        return unknown_setting(_composed_groups(name, overrides, setting.group(1)), setting.group(1))
    return ConfigError(f"{text} (settings are SETTING=VALUE)")


def _no_name(text: str, overrides: Sequence[str], config_dir: str | None) -> ConfigError:
    """The error for a group set to a number or a truth value, where the name of one of its files is due."""
    for override in overrides:
        group, _, value = override.lstrip("+").partition("=")
        available = options_of(group.partition("@")[0], config_dir) if group and "." not in group else []
        if available and value not in available and not re.match(r"[A-Za-z_\[]", value):
            return unknown(group, value, available)
    return ConfigError(f"{text} (settings are SETTING=VALUE)")


def _composed_groups(name: str, overrides: Sequence[str], wrong: str) -> DictConfig:
    """The configuration with the chosen groups and no changed values; ``wrong`` is no setting of it."""
    keys = {override: override.partition("=")[0].partition("@")[0] for override in overrides}
    groups = [
        override
        for override, key in keys.items()
        if key == "hydra.searchpath" or ("." not in key and key.lstrip("+~") != wrong)
    ]
    with initialize_config_module("configs", version_base="1.3"):
        return compose(name, groups)


def unknown_setting(config: DictConfig, key: str) -> ConfigError:
    """The error for a setting that ``config`` does not have, with those that it has beside it."""
    node: Any = config
    *parents, last = key.lstrip("+~").split(".")
    for index, part in enumerate(parents):
        if not OmegaConf.is_dict(node) or part not in node:
            last, parents = part, parents[:index]
            break
        node = node[part]
    existing = [str(entry) for entry in node if not str(entry).startswith("_")] if OmegaConf.is_dict(node) else []
    return unknown(f"setting of {'.'.join(parents) or 'a run'}", last, existing)


def options_of(group: str, config_dir: str | None = None) -> list[str]:
    """Names that a configuration group offers, with those of a folder of one's own."""
    folders = [resources.files("configs").joinpath(group)]
    if config_dir is not None:
        folders.append(Path(config_dir, group))
    found = {
        item.name[:-5]
        for folder in folders
        if folder.is_dir()
        for item in folder.iterdir()
        if item.name.endswith(".yaml")
    }
    return sorted(found)


def plain(config: Any) -> Any:
    """A configuration as plain data, unresolved interpolations kept as text."""
    return OmegaConf.to_container(config, resolve=False) if OmegaConf.is_config(config) else config
