"""Policies on servers: openpi's protocol (and with it any policy behind ``simeval serve``), RoboArena's, OpenVLA's."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from policies.clipped import Clipped
from policies.remote.answers import Wording, declaration
from policies.remote.layout import PRESETS, Layout, read_layout, sources
from policies.remote.links import RestLink, ServerError, WebsocketLink
from policies.remote.policies import RemoteChunked, RemoteChunks, RemotePolicy
from policies.remote.server import Server
from simeval.conventions import UNDECLARED
from simeval.errors import ConfigError, UnsupportedError, unknown
from simeval.policy import Policy
from simeval.settings import whole

__all__ = ["ServerError", "openpi", "openvla", "roboarena"]


def openpi(
    url: str,
    execute: int | None = 5,
    preset: str | None = None,
    observation: Mapping[str, Any] | None = None,
    prompt: str = "prompt",
    action_dim: int | None = None,
    connections: int = 8,
    timeout: float = 60.0,
    patience: float = 20.0,
    api_key_env: str | None = None,
) -> Policy:
    """The policy of a server that speaks openpi's websocket protocol; it is connected to at once.

    The first ``execute`` actions of each chunk are executed, clipped to the action space. With none, a simeval server's
    policy is asked at every step, and its memory travels with the request: exactly that policy, whatever it is.

    ``preset`` (``libero``, ``droid``, ``aloha``) says what the server reads, ``observation`` changes its entries
    (``read_layout``); a simeval server says it itself. ``timeout`` [s] for an answer, ``patience`` [s] for a server
    that is not there. ``api_key_env`` names the environment variable with the key.
    """
    with _server(WebsocketLink, url, connections, timeout, patience, api_key_env) as server:
        declared = declaration(server.greeting, url)
        layout: Layout = declared.layout if declared is not None else {}
        dim = declared.action_dim if declared is not None else action_dim
        conventions = declared.conventions if declared is not None else UNDECLARED
        if preset is not None:
            if preset not in PRESETS:
                raise unknown("preset of policy openpi", preset, PRESETS)
            layout = read_layout(PRESETS[preset].observation)
            dim = PRESETS[preset].action_dim if dim is None else dim
            conventions = PRESETS[preset].conventions
        layout = _changed(layout, observation)
        if not sources(layout):
            raise ConfigError(
                f"the server at {url} does not say what it reads; choose policy.preset={'|'.join(PRESETS)}, or name "
                "its entries in policy.observation"
            )
        if dim is None:
            raise ConfigError(f"the server at {url} does not say how many numbers an action has; set policy.action_dim")
        wording = Wording(layout, prompt, {}, keyed=declared is not None)
        if execute is None:
            if declared is None:
                raise ConfigError(
                    f"the server at {url} is no `simeval serve` and gives no memory back; set policy.execute to the "
                    "number of actions to execute of each chunk"
                )
            return RemotePolicy(server, wording, declared)
        if declared is not None and declared.horizon < whole("execute", execute):
            raise ConfigError(
                f"policy.execute={execute}, and the server's policy predicts "
                + (f"{declared.horizon} actions" if declared.horizon else "no chunks; set policy.execute=null")
            )
        name = f"openpi [{url if declared is None else declared.policy}]"
        return _chunked(server, RemoteChunks(server, wording, dim, execute, name, declared, conventions=conventions))


def roboarena(
    url: str,
    observation: Mapping[str, Any],
    execute: int,
    action_space: str = "joint_position",
    connections: int = 8,
    timeout: float = 60.0,
    patience: float = 20.0,
    api_key_env: str | None = None,
) -> Policy:
    """The policy of a server that speaks RoboArena's protocol.

    Of ``observation`` (``read_layout``), the entries that the server's metadata ask for are sent, images in the size
    that they say. All actions of a chunk are executed, of which there must be ``execute``. ``action_space`` is the
    World's, in RoboArena's words. Servers that keep a history by ``session_id`` are refused: episodes can be forked.
    """
    with _server(WebsocketLink, url, connections, timeout, patience, api_key_env) as server:
        said = server.greeting
        if said.get("needs_session_id"):
            raise UnsupportedError(
                f"the server at {url} keeps a history of each session, which cannot be forked or shown to others' "
                "batches; only servers with needs_session_id false can be evaluated"
            )
        if said.get("action_space") != action_space:
            raise ConfigError(
                f"the server at {url} gives actions in {said.get('action_space')!r}; policy.action_space, that of the "
                f"World, is {action_space!r}"
            )
        names = _roboarena_names(said)
        missing = [name for name in names if observation.get(name) is None]
        if missing:
            raise ConfigError(
                f"the server at {url} reads {', '.join(map(repr, missing))}; say in policy.observation where they come "
                "from"
            )
        size = said.get("image_resolution")
        entries = {name: _sized(observation[name], size if "image" in name else None) for name in names}
        wording = Wording(read_layout(entries), "prompt", {"endpoint": "infer"}, keyed=False)
        dim = 8 if action_space.startswith("joint") else 7
        model = RemoteChunks(server, wording, dim, whole("execute", execute), f"roboarena [{url}]", exactly=True)
        return _chunked(server, model)


def openvla(
    url: str,
    observation: Mapping[str, Any],
    unnorm_key: str | None = None,
    action_dim: int = 7,
    connections: int = 4,
    timeout: float = 60.0,
    patience: float = 20.0,
    api_key_env: str | None = None,
) -> Policy:
    """The policy of a server that speaks OpenVLA's protocol: one image, one instruction, one action (``POST /act``)."""
    with _server(RestLink, url, connections, timeout, patience, api_key_env) as server:
        constants = {} if unnorm_key is None else {"unnorm_key": unnorm_key}
        wording = Wording(read_layout(observation), "instruction", constants, keyed=False)
        model = RemoteChunks(server, wording, action_dim, 1, f"openvla [{url}] {unnorm_key}", exactly=True)
        return _chunked(server, model)


@contextmanager
def _server(
    link: type[WebsocketLink] | type[RestLink],
    url: str,
    connections: int,
    timeout: float,
    patience: float,
    api_key_env: str | None,
) -> Iterator[Server]:
    """A server that is let go again where what is made of it fails."""
    server = Server.of(link, url, connections, timeout, patience, api_key_env)
    try:
        yield server
    except BaseException:
        server.close()
        raise


def _chunked(server: Server, model: RemoteChunks) -> Policy:
    return Clipped(RemoteChunked(model, server))


def _changed(layout: Layout, changes: Mapping[str, Any] | None) -> Layout:
    """A layout with entries replaced or added, and those that are null left out."""
    given = changes or {}
    return {name: value for name, value in layout.items() if name not in given} | read_layout(given)


def _roboarena_names(said: Mapping[str, Any]) -> list[str]:
    sides = ("left", "right") if said.get("needs_stereo_camera") else ("left",)
    cameras = [f"exterior_image_{index}" for index in range(int(said.get("n_external_cameras", 0)))]
    cameras += ["wrist_image"] if said.get("needs_wrist_camera") else []
    images = [f"observation/{camera}_{side}" for camera in cameras for side in sides]
    numbers = ("joint_position", "cartesian_position", "gripper_position")
    return [*images, *(f"observation/{name}" for name in numbers)]


def _sized(entry: Any, size: Any) -> Any:
    """An entry of a layout, its images resized to ``size`` (height, width)."""
    if size is None:
        return entry
    return {**(entry if isinstance(entry, Mapping) else {"from": entry}), "size": list(size)}
