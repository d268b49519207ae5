"""``simeval serve``: a policy behind a socket, until it is told to stop."""

import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from typing import Any

from simeval.cli.build import build_policy, build_world, policy_configs, resolved, world_configs
from simeval.cli.compose import compose_config
from simeval.errors import ConfigError
from simeval.serve.service import PolicyService
from simeval.serve.serving import server_of, serving
from simeval.settings import positive, whole


def serve_command(overrides: Sequence[str], config_dir: str | None = None) -> int:
    """Serve the configured policy until it is interrupted; returns the exit code."""
    config = compose_config("serve", overrides, config_dir)
    settings = resolved(config.serve)
    server_of(settings["dialect"])
    if whole("serve.port", settings["port"], 0) > 65535:
        raise ConfigError(f"serve.port is at most 65535 (0: any that is free); received {settings['port']}")
    whole("serve.max_batch", settings["max_batch"])
    wait_s = 0.0 if settings["wait_ms"] == 0 else positive("serve.wait_ms", settings["wait_ms"]) / 1e3
    variable = settings["api_key_env"]
    key = os.environ.get(variable) if variable else None
    with ExitStack() as stack:
        service = stack.enter_context(_service(config, settings))
        address = stack.enter_context(
            serving(
                service,
                settings["dialect"],
                host=settings["host"],
                port=settings["port"],
                api_key=key,
                max_batch=settings["max_batch"],
                wait_s=wait_s,
                action_space=settings["action_space"],
            )
        )
        chunks = f"chunks of {service.horizon} actions" if service.horizon else "one action a request"
        print(f"serving {service.policy.fingerprint}")
        print(f"{settings['dialect']} at {address}: {chunks}; reads {', '.join(map(str, service.fields))}", flush=True)
        if key is None and settings["host"] not in ("127.0.0.1", "localhost", "::1"):
            print(f"note: whoever reaches {settings['host']} may use it: serve.api_key_env={variable} holds no key")
        with suppress(KeyboardInterrupt):
            threading.Event().wait()
        print("stopping", flush=True)
    return 0


@contextmanager
def _service(config: Any, settings: Mapping[str, Any]) -> Iterator[PolicyService]:
    """The service of a configuration, whose policy is closed at the end, and its World once the service is set up."""
    worlds, policies = world_configs(config), policy_configs(config)
    if len(worlds) != 1 or len(policies) != 1:
        raise ConfigError(f"a server has one policy, in one world; received {', '.join([*policies, *worlds])}")
    (world_entry,), ((name, entry),) = worlds.values(), policies.items()
    with ExitStack() as stack:
        policy = build_policy(entry, world_entry, name)
        stack.callback(policy.close)
        with closing(build_world(resolved(world_entry), num_slots=1)) as world:
            service = PolicyService.of(policy, world, settings["names"], settings["seed"])
        stack.callback(service.policy.close)
        yield service
