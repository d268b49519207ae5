"""``simeval run``: build what the configuration names, run the study into a run folder, score it, report it."""

import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import IO, Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import ConfigAttributeError, OmegaConfBaseException

from simeval import folder
from simeval.cli.build import (
    build_policies,
    build_study,
    build_worlds,
    close_all,
    has_worlds,
    locate_hosts,
    perturbation_axes,
    policy_configs,
    policy_identity,
    recorded_config,
    world_configs,
)
from simeval.cli.compose import (
    AXES,
    GROUPS,
    HOST,
    compose_config,
    own_modules,
    plain,
    run_settings,
    sections,
    unknown_setting,
)
from simeval.cli.present import present
from simeval.cli.progress import RunProgress
from simeval.errors import ConfigError, SimevalError, in_brief, unknown
from simeval.matching import declarations, fit
from simeval.policy import Policy
from simeval.protocols import Setting
from simeval.reader import Run
from simeval.rollout import Engine
from simeval.settings import place, plain_name, seed, truth, whole
from simeval.store import IMAGES, RunStore
from simeval.world import World

IMAGE_MODES = ("lossless", "video", "none")


def run_command(overrides: Sequence[str], config_dir: str | None = None) -> int:
    """Run a study; returns the exit code."""
    config = _configuration(overrides, config_dir)
    _check(config)
    locate_hosts(config)
    study = build_study(config)
    worlds = build_worlds(config)
    try:
        policies = build_policies(config, worlds)
        setting = Setting(worlds, {name: list(named) for name, named in policies.items()}, config.seed)
        size = study.size(setting)
        for where, own in study.policies(setting).items():
            policies[where] |= {name: fit(policy, worlds[where].spec) for name, policy in own.items()}
        path, lock = _prepare(config, worlds, policies, size)
        rates = {name: 1.0 / world.control_dt for name, world in worlds.items()}
        films = rates if config.record.images == "video" else None
        store = RunStore(path, retry_errors=config.run.retry_errors, lock=lock, films=films)
        _run(config, path, store, worlds, policies, study.protocol(setting), size)
    finally:
        close_all({f"world {name!r}": world for name, world in worlds.items()})
    present(path, videos=config.report.videos)
    return _verdict(path)


def _check(config: DictConfig) -> None:
    """Raise ``ConfigError`` for a setting of the run itself that makes no sense."""
    if config.record.images not in IMAGE_MODES:
        raise unknown("record.images", config.record.images, IMAGE_MODES)
    seed("seed", config.seed)
    whole("report.videos", config.report.videos, 0)
    for key in ("run.resume", "run.retry_errors", "record.signals"):
        truth(key, OmegaConf.select(config, key))
    if config.run.dir is not None:
        place("run.dir", config.run.dir)
    if config.run.name is not None:
        plain_name("run.name", config.run.name)


def _configuration(overrides: Sequence[str], config_dir: str | None) -> DictConfig:
    given = run_settings(overrides)
    where = given.get("run.dir")
    if given.get("run.resume") is True and where is not None and (Path(str(where)) / "run.json").exists():
        return _recorded(Path(str(where)), overrides, config_dir)
    config = compose_config("run", overrides, config_dir)
    if config.run.resume:
        where = config.run.dir
        raise ConfigError(
            f"nothing to resume at run.dir={where}: it holds no run.json"
            if where
            else "run.resume=true needs run.dir=…"
        )
    return config


def _recorded(path: Path, overrides: Sequence[str], config_dir: str | None) -> DictConfig:
    """The configuration of a recorded run with changed values, e.g. more episodes.

    What chooses a World, a policy, a protocol or an experiment may be said again, and not otherwise.
    """
    if config_dir is not None:
        own_modules(config_dir)
    recorded = recorded_config(Run(path))
    if not has_worlds(recorded):
        raise ConfigError(f"{path} was made by a script: to go on with it, call evaluate(…, path={str(path)!r}) again")
    config = _with_sections(path, recorded)
    for override in overrides:
        key, _, value = override.partition("=")
        if key.lstrip("+~").partition("@")[0] in (*GROUPS, "protocol", "experiment", AXES):
            _check_chosen(config, override, config_dir)
            continue
        try:
            OmegaConf.set_struct(config, True)
            said = OmegaConf.create({"value": OmegaConf.from_dotlist([f"v={value}"]).v}).value
            OmegaConf.update(config, key, said, force_add=bool(HOST.fullmatch(key)))
        except ConfigAttributeError:
            raise unknown_setting(config, key) from None
        except OmegaConfBaseException as error:
            raise ConfigError(f"{override}: {' '.join(str(error).split())}") from None
    return config


def _with_sections(path: Path, config: DictConfig) -> DictConfig:
    """A recorded configuration with those settings of the run itself that it is older than."""
    defaults = sections("run")
    for name in ("run", "record", "report"):
        found = config.get(name, {})
        if not OmegaConf.is_dict(found):
            raise ConfigError(
                f"{path / 'run.json'}: config.{name} is {found!r}, where settings belong; the file was altered"
            )
        config[name] = OmegaConf.merge(defaults[name], found)
    return config


def _check_chosen(config: DictConfig, override: str, config_dir: str | None) -> None:
    """Raise ``ConfigError``, naming both, where ``override`` chooses something else than a recorded run has."""
    group, _, value = override.partition("=")
    recorded = _choices(config)
    chosen = {group: [name.strip() for name in value.split(",")]}
    if chosen[group] != recorded.get(group):  # what a file is called need not be the name it gives
        chosen = _choices(compose_config("run", [override], config_dir))
        if group in recorded:
            chosen = {group: chosen[group]}
    for kind, names in chosen.items():
        if names != recorded[kind]:
            raise ConfigError(
                f"{override}: a resumed run keeps its {kind}, which is {', '.join(recorded[kind])} and not "
                f"{', '.join(names)}; leave it out, change values only (protocol.episodes=…), or start a new run.dir"
            )


def _choices(config: DictConfig) -> dict[str, list[str]]:
    """Kind of choice -> the names that a configuration has chosen."""
    protocol = config.get("protocol")
    return {
        "world": list(world_configs(config)),
        "policy": list(policy_configs(config)),
        "protocol": [str(protocol.get("name"))] if OmegaConf.is_dict(protocol) else [],
        AXES: list(perturbation_axes(plain(config.get(AXES) or {}))),
    }


def _prepare(
    config: DictConfig, worlds: Mapping[str, World], policies: Mapping[str, Mapping[str, Policy]], size: int | None
) -> tuple[Path, IO[bytes]]:
    """The run folder, made or opened, and the right to write in it; nothing is written before everything was built."""
    manifest = folder.Manifest(
        config=plain(config),
        worlds={name: world.fingerprint for name, world in worlds.items()},
        policies={
            world: {
                name: policy_identity(policy, policy_configs(config)[name], world_configs(config)[world])
                if name in policy_configs(config)
                else policy.fingerprint
                for name, policy in named.items()
            }
            for world, named in policies.items()
        },
        conventions=declarations(worlds, policies),
        size=size,
    )
    if config.run.resume:
        path = Path(str(config.run.dir))
        lock, notes = folder.resume(path, manifest)
        for note in notes:
            print(f"note: {note}")
        return path, lock
    name = config.run.name or "-".join(worlds)
    path = Path(str(config.run.dir or f"runs/{name}-{datetime.now():%Y%m%d-%H%M%S}"))
    return path, folder.create(path, manifest)


def _run(
    config: DictConfig,
    path: Path,
    store: RunStore,
    worlds: Mapping[str, World],
    policies: Mapping[str, Mapping[str, Policy]],
    protocol: Any,
    size: int | None,
) -> None:
    images = config.record.images != "none"
    signals = bool(config.record.signals)

    def keep(name: str) -> bool:
        return (images or not name.startswith(IMAGES)) and (signals or not name.startswith("signals/"))

    recalled = len(Run(path))
    try:
        with (
            RunProgress(size, min(recalled, size or 0)) as progress,
            Engine(worlds, policies, store, keep=keep, on_episode=progress.episode) as engine,
        ):
            engine.run(protocol)
            folder.end(path)
    except KeyboardInterrupt:
        print(
            f"\nsimeval: what had finished is in {path}: go on with `simeval run run.dir={path} run.resume=true`",
            file=sys.stderr,
        )
        raise
    finally:
        acting = [(world, name, policy) for world, named in policies.items() for name, policy in named.items()]
        close_all({f"policy {name!r} of world {world!r}": policy for world, name, policy in acting})


def _verdict(path: Path) -> int:
    """Say which errors there were; ``SimevalError`` where a policy has no finished episode to be judged by."""
    run = Run(path)
    table = run.episodes
    errors = table[table["status"] == "error"]
    if errors.empty:
        return 0
    first = errors.iloc[0]
    where = f"the first: {in_brief(first['error'])} ({first['id']} in {path})"
    done = table[table["status"] == "done"]
    lost = sorted(
        set(zip(errors["world"], errors["policy"], strict=True)) - set(zip(done["world"], done["policy"], strict=True))
    )
    if lost:
        named = ", ".join(f"policy {policy!r} in world {world!r}" for world, policy in lost)
        raise SimevalError(f"every episode of {named} ended in an error, and none counts; {where}")
    print(f"warning: {len(errors)} episodes ended in an error and are left out of the rates; {where}")
    return 0
