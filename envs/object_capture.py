"""The state of a graph of Python objects: what differs from a baseline, as plain data, with sharing kept."""

import enum
import functools
import hashlib
from bisect import bisect_right
from collections import Counter, OrderedDict, deque
from collections.abc import Iterator, Mapping, Sequence
from heapq import heappop, heappush
from types import FunctionType, MethodType
from typing import Any

import numpy as np

from envs.object_nodes import (
    GENERATORS,
    PLAIN,
    Array,
    Attributes,
    Elements,
    Generator,
    Items,
    Members,
    Node,
    ObjectArray,
    Watch,
    generator_state,
    new_generator,
)
from simeval.errors import SnapshotError

_DATA = (np.generic, np.ndarray, dict, list, tuple, deque, set, enum.Enum, *GENERATORS)
_NEW_CONTAINERS = {"dict": dict, "OrderedDict": OrderedDict, "list": list, "deque": deque, "set": set}
_MISSING = object()


class ObjectCapture:
    """Every attribute, list, dictionary, array and random generator reachable from ``roots`` through captured objects.

    Captured are the objects whose class lives under one of ``modules`` (and whose ``module.Class`` name starts with
    none of ``exclude``), and the containers in them. Anything else (functions, handles of libraries) is opaque: taken
    to be constant and left alone. An object that replaced another of its class in the same place since the baseline is
    taken for a new state of it. ``memory`` names arrays of the engine: views of them are captured as views.

    A state says what differs from the baseline. Loading first returns to the baseline, so afterwards the objects, and
    who shares what with whom, are as they were at the save.
    """

    def __init__(
        self,
        roots: Mapping[str, object],
        modules: Sequence[str],
        exclude: Sequence[str] = (),
        memory: Mapping[str, np.ndarray] | None = None,
    ):
        self._modules = tuple(modules)
        self._exclude = tuple(exclude)
        self._captured: dict[type, bool] = {}
        self.memory = _Memory(memory or {})
        self.nodes: list[Node] = []
        self.node_of: dict[int, int] = {}
        self.constants: list[Any] = []
        self.constant_of: dict[int, int] = {}
        self.referrers: Counter[int] = Counter()
        self._discover(roots)
        self.watch = Watch(self.nodes)
        layout = "\n".join(f"{type(node).__name__} {node.path}" for node in self.nodes)
        self.layout = hashlib.blake2b(f"{layout} {len(self.constants)}".encode(), digest_size=10).hexdigest()

    @property
    def generators(self) -> list[Any]:
        """Every random generator found, in a fixed order."""
        return [node.target for node in self.nodes if isinstance(node, Generator)]

    def save(self) -> dict[str, Any]:
        """What differs from the baseline now, as plain data that shares no memory with the objects."""
        return _Save(self).run()

    def load(self, state: Mapping[str, Any]) -> None:
        """Put a saved state back; ``SnapshotError`` where it is of objects built otherwise."""
        if state["layout"] != self.layout:
            raise SnapshotError(
                f"this state is of objects laid out otherwise ({state['layout']}, here {self.layout}); restore it into "
                "a simulator of the same task and settings, under the same versions of packages and of simeval"
            )
        nodes, opaque = self.nodes, self.opaque
        overwritten = {index for index, _ in state["nodes"]}
        for index in self.watch.lively():
            if index not in overwritten:
                nodes[index].revert(opaque)
        decoder = _Load(self, state)
        for index, content in state["nodes"]:
            nodes[index].load(decoder, content)

    def settle(self) -> None:
        """Put the objects of the baseline back in the places of those that replaced them, with their content.

        Nothing else changes. What is saved from then on is less, and saved faster: call it after what builds objects
        anew, such as a reset.
        """
        census = _Save(self, moves=Counter())
        census.run()
        self.load(_Save(self, moves=census.met).run())
        self.watch.forget()

    def captured(self, value: object) -> bool:
        """Whether ``value`` is an object whose attributes are captured."""
        cls = type(value)
        known = self._captured.get(cls)
        if known is None:
            name = f"{cls.__module__}.{cls.__qualname__}"
            known = self._captured[cls] = (
                any(cls.__module__ == m or cls.__module__.startswith(m + ".") for m in self._modules)
                and not any(name.startswith(prefix) for prefix in self._exclude)
                and not isinstance(value, (type, enum.Enum, tuple))
            )
        return known

    def opaque(self, value: object) -> bool:
        """Whether ``value`` is neither data, nor a captured object, nor known since the baseline."""
        cls = type(value)
        if cls in PLAIN or cls is np.ndarray or id(value) in self.node_of or isinstance(value, _DATA):
            return False
        return not (id(value) in self.constant_of or self.captured(value))

    def _discover(self, roots: Mapping[str, object]) -> None:
        queue: deque[tuple[str, object]] = deque(roots.items())
        while queue:
            path, value = queue.popleft()
            if type(value) in PLAIN:
                continue
            self.referrers[id(value)] += 1
            if id(value) in self.node_of or id(value) in self.constant_of:
                continue
            node = self._node(path, value)
            if node is not None:
                self.node_of[id(value)] = len(self.nodes)
                self.nodes.append(node)
                if isinstance(value, np.ndarray) and value.base is not None:
                    self.referrers[id(value.base)] += 1
                queue.extend(node.children())
                continue
            self._constant(value)
            if isinstance(value, (enum.Enum, tuple)):
                self._constant(type(value))
            queue.extend((f"{path}.{part}", item) for part, item in _reached_by_constant(value, self._modules))

    def _constant(self, value: object) -> None:
        if id(value) not in self.constant_of:
            self.constant_of[id(value)] = len(self.constants)
            self.constants.append(value)

    def _node(self, path: str, value: object) -> Node | None:
        if isinstance(value, dict):
            return Items(path, value)
        if isinstance(value, (list, deque)):
            return Elements(path, value)
        if isinstance(value, set):
            return Members(path, value)
        if isinstance(value, np.ndarray):
            if not value.flags.writeable or self.memory.describe(value) is not None:
                return None
            return ObjectArray(path, value) if value.dtype.hasobject else Array(path, value)
        if isinstance(value, GENERATORS):
            return Generator(path, value)
        return Attributes(path, value) if self.captured(value) else None


class _Save:
    """One save. Values are encoded as themselves where plain, otherwise as a tuple that begins with a tag."""

    def __init__(self, capture: ObjectCapture, moves: Counter[tuple[int, int]] | None = None):
        self.capture = capture
        self.settling = moves is not None
        self.moves = moves or Counter()
        self.met: Counter[tuple[int, int]] = Counter()
        self.left: dict[int, int] = {}
        self.opaque = capture.opaque
        self._node_of, self._constant_of = capture.node_of, capture.constant_of
        self.new: list[Any] = []
        self.seen: dict[int, tuple[Any, ...]] = {}
        self.replaced: dict[int, object] = {}
        self.referred: set[int] = set()
        self.at = -1
        self.inside_new = 0
        self._lively = capture.watch.lively()
        self._queue = list(self._lively)

    def run(self) -> dict[str, Any]:
        nodes, all_nodes, queue, orphans = [], self.capture.nodes, self._queue, []
        while queue:
            index = self.at = heappop(queue)
            node = all_nodes[index]
            if type(node) is Array and index not in self.replaced and self._orphaned(node.target):
                orphans.append(index)
                continue
            content = node.save(self, self.replaced.get(index, node.target))
            if content is not None:
                nodes.append([index, content])
        nodes.extend([index, [all_nodes[index].target.copy()]] for index in orphans if index in self.referred)
        return {"layout": self.capture.layout, "nodes": nodes, "new": self.new}

    def _orphaned(self, array: np.ndarray) -> bool:
        """Whether all that referred to ``array`` at the baseline has been met, and refers to something else now."""
        return self.left.get(id(array), 0) == self.capture.referrers[id(array)]

    def unchanged(self, encoded: Any, counterpart: Any) -> bool:
        return type(encoded) is tuple and encoded[0] == "node" and self._node_of.get(id(counterpart)) == encoded[1]

    def value(self, value: Any, counterpart: Any, where: tuple[Any, ...]) -> Any:
        kind = type(value)
        if kind in PLAIN or isinstance(value, np.generic):
            return value
        identity, origin = id(value), id(counterpart)
        if identity != origin and not self.inside_new:
            self.left[origin] = self.left.get(origin, 0) + 1
            if self.settling:
                self.met[origin, identity] += 1
        known = self.seen.get(identity)
        if known is not None:
            return known
        index = self._node_of.get(identity)
        if index is not None and index not in self.replaced:
            self.referred.add(index)
            return ("node", index)
        constant = self._constant_of.get(identity)
        if constant is not None:
            return ("constant", constant)
        if kind is np.ndarray and not self.settling:
            return self._array(value, where)
        if self.capture.captured(value):
            return self._object(value, counterpart, where)
        index = self._node_of.get(origin)
        if index is not None and self._adopts(index, value, counterpart):
            self._replace(index, value)
            return self._remember(value, ("node", index))
        if isinstance(value, np.ndarray):
            return self._array(value, where)
        if isinstance(value, enum.Enum):
            return ("enum", self._type(value, where), value.name)
        if isinstance(value, tuple):
            cls = None if type(value) is tuple else self._type(value, where)
            return ("tuple", cls, self._elements(value, counterpart, where))
        return self._container(value, counterpart, where)

    def _adopts(self, index: int, value: Any, counterpart: Any) -> bool:
        """Whether ``value`` is a new content of what stood in its place: nothing refers to that any more.

        Either nothing else ever did, or, as a census of ``moves`` has shown, all that did refers to ``value`` instead.
        """
        return (
            index > self.at
            and not self.inside_new
            and index not in self.replaced
            and index not in self.referred
            and self.capture.referrers[id(counterpart)] in (1, self.moves[id(counterpart), id(value)])
            and self.capture.nodes[index].accepts(value)
        )

    def _replace(self, index: int, value: object) -> None:
        self.replaced[index] = value
        if index not in self._lively:
            heappush(self._queue, index)

    def _object(self, value: Any, counterpart: Any, where: tuple[Any, ...]) -> tuple[Any, ...]:
        index = self.capture.node_of.get(id(counterpart), -1)
        in_use = id(value) in self.capture.node_of
        if not in_use and (index < 0 or type(counterpart) is not type(value)):
            raise self._refusal(value, where)
        if in_use or index in self.replaced or index in self.referred or index <= self.at:
            raise SnapshotError(f"cannot capture {_path(where)}: an object and what took its place are both in use")
        self._replace(index, value)
        return self._remember(value, ("node", index))

    def _array(self, array: np.ndarray, where: tuple[Any, ...]) -> tuple[Any, ...]:
        base = array.base
        if base is not None:
            described = self.capture.memory.describe(array)
            if described is not None:
                return self._remember(array, ("memory", *described))
        if array.dtype.hasobject:
            items = self._elements(array.reshape(-1).tolist(), None, where)
            return self._append(array, ("objects", items, list(array.shape)))
        if isinstance(base, np.ndarray) and base.base is None and base.size and not base.dtype.hasobject:
            return self._remember(array, ("view", self.value(base, None, where), *_layout_in(array, base)))
        flags = array.flags
        if flags.c_contiguous or not flags.f_contiguous:
            return self._append(array, ("array", array.copy()))
        return self._append(array, ("fortran", array.T.copy()))

    def _container(self, value: Any, counterpart: Any, where: tuple[Any, ...]) -> tuple[Any, ...]:
        if isinstance(value, GENERATORS):
            return self._append(value, ("generator", generator_state(value)))
        kind = type(value).__name__
        if _NEW_CONTAINERS.get(kind) is not type(value):
            raise self._refusal(value, where)
        reference = self._append(value, None)
        content: list[Any]
        if isinstance(value, dict):
            base = counterpart if isinstance(counterpart, dict) else {}
            keys = self._elements(list(value), None, where)
            self.inside_new += 1
            content = [
                [key, self.value(item, base.get(name, _MISSING), (where, name))]
                for key, (name, item) in zip(keys, value.items(), strict=True)
            ]
            self.inside_new -= 1
        else:
            content = self._elements(sorted(value, key=repr) if isinstance(value, set) else value, counterpart, where)
        self.new[reference[1]] = (kind, content, value.maxlen if isinstance(value, deque) else None)
        return reference

    def _elements(self, values: Any, counterpart: Any, where: tuple[Any, ...]) -> list[Any]:
        base = counterpart if isinstance(counterpart, (list, deque, tuple)) else ()
        self.inside_new += 1
        encoded = [
            self.value(item, base[i] if i < len(base) else _MISSING, (where, i)) for i, item in enumerate(values)
        ]
        self.inside_new -= 1
        return encoded

    def _type(self, value: object, where: tuple[Any, ...]) -> int:
        index = self.capture.constant_of.get(id(type(value)))
        if index is None:
            raise self._refusal(value, where)
        return index

    def _append(self, value: object, content: Any) -> tuple[Any, ...]:
        reference = self.seen[id(value)] = ("new", len(self.new))
        self.new.append(content)
        return reference

    def _remember(self, value: object, reference: tuple[Any, ...]) -> tuple[Any, ...]:
        self.seen[id(value)] = reference
        return reference

    def _refusal(self, value: object, where: tuple[Any, ...]) -> SnapshotError:
        return SnapshotError(
            f"cannot capture {_path(where)}: a {type(value).__module__}.{type(value).__qualname__} that was not there "
            "when the simulator was built; exclude its class if it holds no state"
        )


class _Load:
    """One load: what was encoded becomes values again; what was new is built once."""

    def __init__(self, capture: ObjectCapture, state: Mapping[str, Any]):
        self.capture, self.state = capture, state
        self.opaque = capture.opaque
        self.built: dict[int, Any] = {}

    def value(self, encoded: Any) -> Any:
        if type(encoded) is not tuple:
            return encoded
        tag, what, *rest = encoded
        if tag == "new":
            return self.built[what] if what in self.built else self._new(what)
        if tag == "node":
            return self.capture.nodes[what].target
        if tag == "constant":
            return self.capture.constants[what]
        if tag == "memory":
            return _strided(self.capture.memory.fields[what], rest)
        if tag == "view":
            return _strided(self.value(what), rest)
        if tag == "enum":
            return self.capture.constants[what][rest[0]]
        values = [self.value(item) for item in rest[0]]
        return tuple(values) if what is None else self.capture.constants[what](*values)

    def _new(self, number: int) -> Any:
        kind, content, *rest = self.state["new"][number]
        value: Any
        if kind == "array":
            value = self.built[number] = content.copy()
            return value
        if kind == "fortran":
            value = content.T.copy(order="F")
        elif kind == "generator":
            value = new_generator(content)
        elif kind == "objects":
            value = np.empty(rest[0], dtype=object)
            value.flat = [self.value(item) for item in content]
        else:
            value = deque(maxlen=rest[0]) if kind == "deque" else _NEW_CONTAINERS[kind]()
        self.built[number] = value
        if isinstance(value, dict):
            value.update((self.value(key), self.value(item)) for key, item in content)
        elif isinstance(value, set):
            value.update(self.value(item) for item in content)
        elif isinstance(value, (list, deque)):
            value.extend(self.value(item) for item in content)
        return value


class _Memory:
    """Arrays of the engine by address, to recognise views of them."""

    def __init__(self, fields: Mapping[str, np.ndarray]):
        self.fields = dict(fields)
        self._ordered = sorted((_address(a), a.nbytes, name) for name, a in fields.items() if a.nbytes)
        self._starts = [start for start, _, _ in self._ordered]

    def describe(self, array: np.ndarray) -> tuple[Any, ...] | None:
        """The field that ``array`` is a view of, and where in it; ``None`` for an array with memory of its own."""
        if array.base is None or not array.size or (isinstance(array.base, np.ndarray) and array.base.base is None):
            return None
        address = _address(array)
        at = bisect_right(self._starts, address) - 1
        if at < 0 or address >= self._ordered[at][0] + self._ordered[at][1]:
            return None
        name = self._ordered[at][2]
        return (name, *_layout_in(array, self.fields[name]))


def _layout_in(array: np.ndarray, owner: np.ndarray) -> tuple[Any, ...]:
    return (_address(array) - _address(owner), list(array.shape), list(array.strides), array.dtype.str)


def _strided(owner: np.ndarray, layout: Sequence[Any]) -> np.ndarray:
    offset, shape, strides, dtype = layout
    return np.ndarray(tuple(shape), np.dtype(dtype), owner.ravel(order="K"), offset, tuple(strides))


def _address(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]


def _path(where: Any) -> str:
    return where if isinstance(where, str) else f"{_path(where[0])}[{where[1]!r}]"


def _reached_by_constant(value: object, modules: Sequence[str]) -> Iterator[tuple[str, object]]:
    if isinstance(value, tuple):
        yield from ((str(i), item) for i, item in enumerate(value))
    elif isinstance(value, MethodType):
        yield "__self__", value.__self__
    elif isinstance(value, functools.partial):
        yield from (("func", value.func), ("args", value.args))
    elif isinstance(value, FunctionType) and value.__closure__ and value.__module__.startswith(tuple(modules)):
        for name, cell in zip(value.__code__.co_freevars, value.__closure__, strict=True):
            try:
                yield name, cell.cell_contents
            except ValueError:  # a variable that was never assigned
                continue
