"""From configuration to objects: Worlds, the policies that act in each, and the study."""

import os
import re
import sys
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import resources
from typing import Any

from hydra.errors import InstantiationException
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

from simeval.axes import PerturbationAxis
from simeval.cli.compose import options_of
from simeval.conventions import read_conventions
from simeval.declared import check_declared
from simeval.errors import ConfigError, MissingPackageError, SimevalError, in_brief, unknown
from simeval.host import HostedPolicy, HostedWorld
from simeval.host.target import locate, makes
from simeval.host.world import DEADLINE
from simeval.judge import Judge
from simeval.matching import Declaring, fit
from simeval.policy import Policy
from simeval.protocols import Study
from simeval.reader import Run
from simeval.settings import names, plain_name, positive, whole
from simeval.training import Trainer
from simeval.types import canonical_json
from simeval.world import World

_NOT_ARGUMENTS = ("name", "expert", "vla", "diffusion", "host")
"""Entries of a world's configuration that are not arguments of its class."""
_SIMULATOR = "simulator"
_OF_A_WORLD = {
    "expert": "choose a policy other than policy=expert and policy=noisy_expert, such as policy=uniform",
    "vla": "train one with `simeval train policy=vla` and name it by policy.checkpoint",
    "diffusion": "train one with `simeval train policy=diffusion` and name it by policy.checkpoint",
}
"""What a policy's configuration may take of a world's, and what to do where there is none."""
_TRUSTED = "SIMEVAL_TRUSTED_PYTHON"
"""Environment variable: interpreters that a run folder may name, separated as in ``PATH``."""
_HYDRAS_OWN = {"_args_", "_partial_"}
"""Entries by which Hydra calls a class otherwise than with all of its settings by name."""
_named_here: set[str] = set()
"""Interpreters that this process was told to use by its own configuration."""


def world_configs(config: DictConfig) -> dict[str, DictConfig]:
    """World name -> its configuration, from ``worlds`` or the single ``world``."""
    return _by_name(config, "world", "worlds")


def policy_configs(config: DictConfig) -> dict[str, DictConfig]:
    """Policy name -> its configuration, from ``policies`` or the single ``policy``."""
    return _by_name(config, "policy", "policies")


def recorded_config(run: Run) -> DictConfig:
    """The configuration that made a run; ``ConfigError`` where it is none any more."""
    try:
        return OmegaConf.create(run.config)
    except OmegaConfBaseException as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"{run.path / 'run.json'}: config cannot be read ({reason}); the file was altered") from None


def has_worlds(config: DictConfig) -> bool:
    """Whether a configuration names a World at all; that of a run made by a script does not."""
    return bool(config.get("world") or config.get("worlds"))


def _by_name(config: DictConfig, single: str, several: str) -> dict[str, DictConfig]:
    one, many = config.get(single), config.get(several)
    for key, entry in {single: one, several: many, **{f"{several}.{name}": e for name, e in _items(many)}}.items():
        if entry is not None and not OmegaConf.is_dict(entry):
            raise ConfigError(
                f"{key} is {entry!r}, where the settings of a {single} belong; choose one by {single}=<name>"
            )
    if one is not None and many:
        raise ConfigError(
            f"both {single}={one.get('name')} and {several} ({', '.join(many)}) are configured; "
            f"change an entry with {several}.<name>.<setting>=…, or drop one with '~{several}.<name>'"
        )
    if many:
        return dict(many.items())
    if one is None:
        raise ConfigError(f"no {single} is configured; choose one with {single}=<name>")
    return {plain_name(f"{single}.name", one.name) if "name" in one else single: one}


def _items(entries: Any) -> Iterable[tuple[str, Any]]:
    return entries.items() if OmegaConf.is_dict(entries) else ()


def build_worlds(config: DictConfig) -> dict[str, World]:
    """All Worlds of a configuration, by name; those already built are closed if a later one fails."""
    worlds: dict[str, World] = {}
    try:
        for name, entry in world_configs(config).items():
            settings = resolved(entry)
            python = host_settings(settings)["python"]
            if python is not None and OmegaConf.select(config, "run.resume"):
                print(f"note: world {name!r} runs in {python}, as {config.run.dir} or you say", file=sys.stderr)
            worlds[name] = build_world(settings)
    except BaseException:
        close_all({f"world {name!r}": world for name, world in worlds.items()})
        raise
    return worlds


def close_all(things: Mapping[str, World | Policy]) -> None:
    """Close every one; one that fails keeps neither the others from it nor what was done with them from being shown."""
    for what, thing in things.items():
        try:
            thing.close()
        except Exception:
            print(f"warning: {what} failed to close: {in_brief(traceback.format_exc())}", file=sys.stderr)


def resolved(entry: DictConfig) -> Any:
    """A configuration as plain data, interpolations resolved; ``ConfigError`` names what is missing."""
    try:
        return OmegaConf.to_container(entry, resolve=True, throw_on_missing=True)
    except MissingMandatoryValue as error:
        key = re.search(r"full_key: (\S+)", str(error))
        raise ConfigError(f"{key.group(1) if key else error} must be given: it has no default") from None
    except OmegaConfBaseException as error:
        raise ConfigError(" ".join(str(error).split())) from None


def build_world(entry: Any, **changes: Any) -> World:
    """A World from its plain configuration, with ``changes`` to it; picklable by way of ``functools.partial``.

    In worker processes where its ``host`` says so.
    """
    settings = dict(entry) | changes
    arguments = _world_arguments(settings)
    what, host = f"world {entry.get('name', '')!r}", host_settings(settings)
    if not host["processes"] and host["python"] is None:
        return _instantiate(arguments, what, World)
    if host["python"] is not None:
        _named_here.add(host["python"])
    return HostedWorld(
        arguments,
        processes=max(host["processes"], 1),
        python=host["python"],
        deadline=host["deadline"],
        label=what,
    )


def _world_arguments(settings: Mapping[str, Any]) -> dict[str, Any]:
    """What a World's class is given: without the entries of a configuration that are for others.

    The simulator in which a learned World begins is a World's configuration too, with as many slots.
    """
    arguments = {key: value for key, value in settings.items() if key not in _NOT_ARGUMENTS}
    inner = settings.get(_SIMULATOR)
    if isinstance(inner, Mapping):
        if host_settings(inner)["python"] is not None:
            raise ConfigError(
                f"the simulator in which world {settings.get('name', '')!r} begins runs in an interpreter of its own "
                "(host.python), and cannot run within another World; let episodes begin at recorded starts instead "
                "(simulator: null)"
            )
        slots = {"num_slots": settings["num_slots"]} if "num_slots" in settings else {}
        arguments[_SIMULATOR] = _world_arguments({**inner, **slots})
    return arguments


def locate_hosts(config: DictConfig) -> None:
    """Make the interpreters that a configuration names by relative paths absolute: a run is read from elsewhere too.

    Links are kept: an environment's interpreter is one, and is another without it.
    """
    for entry in (*world_configs(config).values(), *policy_configs(config).values()):
        host = entry.get("host")
        python = host.get("python") if OmegaConf.is_dict(host) else None
        if python is not None:
            host["python"] = _located(python)


def _located(python: object) -> str:
    return os.path.abspath(str(python)) if os.sep in str(python) else str(python)


def planning_world(world: Mapping[str, Any], num_slots: int) -> World:
    """A copy of the World that a policy acts in, for it to plan in: of so many slots, and without cameras.

    Named in a policy's configuration, with ``world: ${world}`` and ``_recursive_: false``.
    """
    return build_world(world, num_slots=num_slots, **({"cameras": []} if "cameras" in world else {}))


def host_settings(entry: Mapping[str, Any]) -> dict[str, Any]:
    """The ``host`` of a world's configuration, complete; ``ConfigError`` for what it cannot have."""
    settings: dict[str, Any] = {"processes": 0, "python": None, "deadline": DEADLINE}
    given = entry.get("host") or {}
    if not isinstance(given, Mapping):
        raise ConfigError(f"host is a mapping of {', '.join(settings)}; received {given!r}")
    for key in given:
        if key not in settings:
            raise unknown("setting of host", key, settings)
    settings |= dict(given)
    whole("host.processes", settings["processes"], 0)
    positive("host.deadline", settings["deadline"])
    return settings


def rebuild_world(entry: DictConfig, **changes: Any) -> World:
    """A World from the configuration in a run folder, maybe somebody else's: it builds Worlds and nothing else."""
    arguments = resolved(entry)

    def check(value: Any) -> None:
        if isinstance(value, Mapping):
            if "_target_" in value:
                check_target(value["_target_"], World, "the run's world")
            for inner in value.values():
                check(inner)
        elif isinstance(value, list):
            for inner in value:
                check(inner)

    python = host_settings(arguments)["python"]
    if python is None:
        check(_world_arguments(arguments))
        return build_world(arguments | {"host": None}, **changes)
    # What the World needs may exist in that interpreter alone; the worker refuses what is no World.
    trusted = {*_named_here, *_installed_pythons(), *os.environ.get(_TRUSTED, "").split(os.pathsep)}
    if _located(python) not in map(_located, trusted):
        raise ConfigError(
            f"the run's world {entry.get('name', '')!r} is not built again: it was hosted in the interpreter {python}, "
            "which only the run folder says, and a run folder received from somebody could name any program; "
            f"where that one is yours, set {_TRUSTED}={python} in the environment and give the same command again"
        )
    return build_world(arguments, **changes)


def _installed_pythons() -> set[str]:
    """Interpreters that the configurations of this installation name."""
    named = {OmegaConf.select(entry, "host.python") for _, entry in _shipped("world")}
    return {python for python in named if python is not None}


def _shipped(group: str) -> Iterator[tuple[str, DictConfig]]:
    """Name and configuration of what this installation has of a group."""
    for name in options_of(group):
        entry = OmegaConf.create(resources.files("configs").joinpath(group, f"{name}.yaml").read_text())
        if isinstance(entry, DictConfig):
            yield name, entry


def build_policies(config: DictConfig, worlds: Mapping[str, World]) -> dict[str, dict[str, Policy]]:
    """World name -> policy name -> bound policy. ``${world.…}`` in a policy means the World it acts in.

    A policy acts in all Worlds, or in those that its entry ``worlds`` names.
    """
    built: dict[str, dict[str, Policy]] = {}
    named = world_configs(config)
    acting = {name: _worlds_of(name, entry, list(named)) for name, entry in policy_configs(config).items()}
    for world_name, entry in named.items():
        built[world_name] = {}
        for name, policy_entry in policy_configs(config).items():
            if world_name not in acting[name]:
                continue
            python = host_settings(_policy_arguments(policy_entry, entry))["python"]
            if python is not None and OmegaConf.select(config, "run.resume"):
                print(f"note: policy {name!r} runs in {python}, as {config.run.dir} or you say", file=sys.stderr)
            built[world_name][name] = fit(build_policy(policy_entry, entry, name), worlds[world_name].spec)
        if not built[world_name]:
            raise ConfigError(f"no policy acts in world {world_name!r}; name it in the worlds of one, or drop it")
    return built


def _worlds_of(name: str, entry: DictConfig, known: Sequence[str]) -> tuple[str, ...]:
    only: Any = entry.get("worlds")
    if only is None:
        return tuple(known)
    given: Any = OmegaConf.to_container(only) if OmegaConf.is_config(only) else only
    chosen = names(f"policies.{name}.worlds", given)
    for world in chosen:
        if world not in known:
            raise unknown(f"world of policy {name!r}", world, known)
    return chosen


def build_policy(entry: DictConfig, world_entry: DictConfig, name: str) -> Policy:
    """One policy for one World's configuration, not yet bound."""
    arguments = _policy_arguments(entry, world_entry)
    said = arguments.pop("conventions", None)
    policy = _maybe_hosted(arguments, f"policy {name!r}")
    return policy if not said else Declaring(policy, read_conventions(said))


def _maybe_hosted(arguments: dict[str, Any], what: str) -> Policy:
    """A policy in this process, or in a worker where its ``host`` names an interpreter."""
    host = host_settings(arguments)
    own = {key: value for key, value in arguments.items() if key != "host"}
    if host["processes"]:
        raise ConfigError(f"{what}: a policy lives in one process; its host has python and deadline")
    if host["python"] is None:
        return _instantiate(own, what, Policy)
    return HostedPolicy(own, python=host["python"], deadline=host["deadline"], label=what)


def _takes(policy: DictConfig, own: str) -> bool:
    """Whether a policy's configuration takes an entry of its World's."""
    return f"${{world.{own}}}" in str(OmegaConf.to_container(policy, resolve=False))


def policy_identity(policy: Policy, entry: DictConfig, world_entry: DictConfig) -> str:
    """What a policy's actions depend on: its own fingerprint, and how it was configured, but for slots and hosts."""
    return f"{policy.fingerprint} {canonical_json(_slotless(_policy_arguments(entry, world_entry)))}"


def _slotless(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _slotless(inner) for key, inner in value.items() if key not in ("num_slots", "host")}
    return [_slotless(inner) for inner in value] if isinstance(value, list) else value


def _policy_arguments(entry: DictConfig, world_entry: DictConfig) -> dict[str, Any]:
    for own, hint in _OF_A_WORLD.items():
        if _takes(entry, own) and world_entry.get(own) is None:
            worlds = ", ".join(world for world, one in _shipped("world") if one.get(own) is not None)
            having = f"these have: {worlds}" if worlds else "none have"
            others = ", ".join(policy for policy, one in _shipped("policy") if not _takes(one, own))
            raise ConfigError(
                f"world {world_entry.get('name', 'world')!r} has no {own} of its own ({having}); {hint}; "
                f"policies that need none: {others}"
            )
    values = resolved(OmegaConf.create({"world": resolved(world_entry), "policy": entry}))["policy"]
    return {key: value for key, value in values.items() if key not in ("name", "worlds")}


def build_study(config: DictConfig) -> Study:
    """The configured protocol."""
    entry = config.get("protocol")
    if entry is None:
        raise ConfigError("no protocol is configured; choose one with protocol=<name>")
    if not OmegaConf.is_dict(entry):
        raise ConfigError(f"protocol is {entry!r}, where its settings belong; choose one with protocol=<name>")
    arguments = {key: value for key, value in resolved(entry).items() if key != "name"}
    read = f"{OmegaConf.to_container(entry, resolve=False)}"
    if config.get("perturbation") and "axes" not in arguments and "perturbation" not in read:
        raise ConfigError(
            f"protocol {entry.get('name', 'protocol')!r} applies no perturbation, and perturbation=… names some; "
            "choose protocol=matched, which does, or leave perturbation=… out"
        )
    if arguments.get("axes") is not None:
        arguments["axes"] = perturbation_axes(arguments["axes"])
    return _instantiate(arguments, "protocol", Study, "protocol.")


def perturbation_axes(entry: Any, name: str = "") -> dict[str, Any]:
    """The configurations of single axes in one of axes and presets of axes, by name; what else it builds is refused."""
    if not isinstance(entry, Mapping):
        raise ConfigError(f"perturbation is {entry!r}, where axes belong; choose them by perturbation=<name>,<name>")
    if "_target_" in entry:
        check_target(entry["_target_"], PerturbationAxis, f"perturbation axis {name!r}")
        return {name or str(entry.get("name", "axis")): dict(entry)}
    found: dict[str, Any] = {}
    for key, value in entry.items():
        for axis, settings in perturbation_axes(value, str(key)).items():
            if axis in found:
                raise ConfigError(f"perturbation axis {axis!r} is in two of {', '.join(map(str, entry))}")
            found[axis] = settings
    return found


def build_trainer(entry: DictConfig, section: str) -> Trainer:
    """A configured training: ``policy`` or ``worldmodel`` is the ``section`` of its configuration."""
    if not OmegaConf.is_dict(entry):
        raise ConfigError(f"{section} is {entry!r}, where its settings belong; choose one by {section}=<name>")
    arguments = resolved(entry)
    plain_name(f"{section}.name", arguments.get("name"))
    return _instantiate({k: v for k, v in arguments.items() if k != "name"}, "the training", Trainer, f"{section}.")


def build_judge(entry: DictConfig) -> Judge:
    """A configured judge."""
    arguments = resolved(entry)
    return _instantiate({k: v for k, v in arguments.items() if k != "name"}, "the judge", Judge)


def check_target(target: Any, kind: type, what: str) -> None:
    """Raise ``ConfigError`` unless ``target`` names a subclass of ``kind``, or something declared to return one.

    A configuration, one's own or that of a run received from somebody, builds what it is meant to build, and calls
    nothing else.
    """
    found = locate(target, what)
    if not makes(found, kind):
        raise ConfigError(
            f"{what}: _target_ {target} is no {kind.__name__}; name a subclass of simeval.{kind.__name__}"
        )


def _check_arguments(value: Any, what: str, at: str) -> None:
    """Raise ``ConfigError`` unless every class in a configuration takes the settings that it is given there."""
    if isinstance(value, list):
        for inner in value:
            _check_arguments(inner, what, at)
    if not isinstance(value, Mapping):
        return
    if "_target_" in value and not _HYDRAS_OWN & value.keys():
        settings = {key: inner for key, inner in value.items() if not key.startswith("_")}
        check_declared(locate(value["_target_"], what), settings, at)
    if value.get("_recursive_", True):
        for key, inner in value.items():
            _check_arguments(inner, what, f"{at}{key}.")


def _instantiate(arguments: Any, what: str, kind: type, at: str | None = None) -> Any:
    """The ``kind`` that a configuration describes; ``at`` comes before the names of its settings in errors."""
    if not isinstance(arguments, Mapping) or "_target_" not in arguments:
        raise ConfigError(f"{what}: its configuration names no class (_target_); received {arguments!r}")
    check_target(arguments["_target_"], kind, what)
    _check_arguments(arguments, what, f"{what}: " if at is None else at)
    try:
        built = instantiate(arguments, _convert_="all")
    except InstantiationException as error:
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, SimevalError):
            cause = cause.__cause__
        if cause is not None:
            raise cause from None
        if isinstance(error.__cause__, ModuleNotFoundError):
            missing = str(error.__cause__.name)
            raise MissingPackageError(f"{what} needs {missing}, which", missing) from error
        reason = error.__cause__ if error.__cause__ is not None else error
        raise ConfigError(f"{what}: {type(reason).__name__}: {' '.join(str(reason).split())}") from error
    except SystemExit as error:
        raise ConfigError(f"{what}: its class calls sys.exit({error.code!r}) where it is built") from error
    except OmegaConfBaseException as error:
        raise ConfigError(f"{what}: {' '.join(str(error).split())}") from None
    if not isinstance(built, kind):
        raise ConfigError(f"{what}: {arguments['_target_']} gives a {type(built).__name__}, expected a {kind.__name__}")
    return built
