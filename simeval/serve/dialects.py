"""The protocols over websockets: openpi's, and RoboArena's, which differs in its metadata and in naming an endpoint."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from simeval.errors import ConfigError, unknown
from simeval.serve.messages import MessageError, pack
from simeval.serve.service import PolicyService, Request, Session

ACTION_SPACES = {"joint_position": 8, "joint_velocity": 8, "cartesian_position": 7, "cartesian_velocity": 7}
"""RoboArena's action spaces -> numbers in an action, the gripper's last."""


class Conversation(ABC):
    """What is said on one connection."""

    @abstractmethod
    def hear(self, message: Any) -> Request | bytes | str:
        """The request in a message, or what to say to it at once; ``MessageError`` where it is neither."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """What a server says first on a connection, and how it goes on."""

    metadata: Mapping[str, Any]
    begin: Callable[[], Conversation]


def openpi(service: PolicyService) -> Dialect:
    """openpi's protocol: every message is an observation; ours also know ``{"endpoint": "reset"}``: a new episode."""
    return Dialect(service.metadata, lambda: _OpenPi(service))


def roboarena(service: PolicyService, action_space: str) -> Dialect:
    """RoboArena's protocol. The metadata say which cameras the client sends; ``session_id`` tells episodes apart."""
    if action_space not in ACTION_SPACES:
        raise unknown("action space of RoboArena", action_space, ACTION_SPACES)
    if service.spec.action_space.shape != (ACTION_SPACES[action_space],):
        raise ConfigError(
            f"RoboArena's {action_space} has {ACTION_SPACES[action_space]} numbers; "
            f"the policy's actions are {service.spec.action_space.shape}"
        )
    images = {field.name: field.shape for field in service.fields if len(field.shape) == 3}
    exterior = [f"observation/exterior_image_{index}_{side}" for index in (0, 1) for side in ("left", "right")]
    wrist = [f"observation/wrist_image_{side}" for side in ("left", "right")]
    numbers = ["observation/joint_position", "observation/cartesian_position", "observation/gripper_position"]
    for field in service.fields:
        known = [*exterior, *wrist] if field.name in images else numbers
        if field.name not in known:
            raise unknown(f"name in RoboArena of observation {field.key!r} (set serve.names)", field.name, known)
    sizes = {shape[:2] for shape in images.values()}
    if len(sizes) > 1:
        raise ConfigError(f"RoboArena's images are all of one size; the policy reads {sorted(sizes)}")
    metadata = {
        "image_resolution": list(sizes.pop()) if sizes else None,
        "needs_wrist_camera": bool(images.keys() & set(wrist)),
        "n_external_cameras": 1 + max((int(name.split("_")[2]) for name in images if name in exterior), default=-1),
        "needs_stereo_camera": any(name.endswith("_right") for name in images),
        "needs_session_id": service.remembers,
        "action_space": action_space,
    }
    return Dialect(metadata, lambda: _RoboArena(service))


class _OpenPi(Conversation):
    def __init__(self, service: PolicyService):
        self._service = service
        self._session = service.session()

    def hear(self, message: Any) -> Request | bytes | str:
        if isinstance(message, Mapping) and message.get("endpoint") == "reset":
            self._session = self._service.session()
            return pack({"reset": True})
        return self._service.read(message, self._session)


class _RoboArena(Conversation):
    def __init__(self, service: PolicyService):
        self._service = service
        self._sessions: dict[str, Session] = {}

    def hear(self, message: Any) -> Request | bytes | str:
        endpoint = message.get("endpoint") if isinstance(message, Mapping) else None
        if endpoint not in ("infer", "reset"):
            raise MessageError(f"a message is a map whose 'endpoint' is 'infer' or 'reset'; received {endpoint!r}")
        name = str(message.get("session_id", ""))
        if endpoint == "reset":
            self._sessions.pop(name, None)
            return "reset successful"
        if name not in self._sessions:
            self._sessions[name] = self._service.session()
        return self._service.read(message, self._sessions[name])
