"""The state of a graph of Python objects: what differs from a baseline, as plain data, with sharing kept."""

import enum
import functools
import hashlib
import random
from bisect import bisect_right
from collections import OrderedDict, deque
from collections.abc import Iterator, Mapping, Sequence
from operator import is_
from types import FunctionType, MethodType
from typing import Any

import numpy as np

from simeval.errors import SnapshotError

_GENERATORS = (np.random.Generator, np.random.RandomState, random.Random)
_DATA = (np.generic, np.ndarray, dict, list, tuple, deque, set, enum.Enum, *_GENERATORS)
_PLAIN = frozenset({type(None), bool, int, float, str, bytes})
_NEW_CONTAINERS = {"dict": dict, "OrderedDict": OrderedDict, "list": list, "deque": deque, "set": set}
_BIT_GENERATORS = ("PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64")
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
        self.nodes: list[_Node] = []
        self.node_of: dict[int, int] = {}
        self.constants: list[object] = []
        self.constant_of: dict[int, int] = {}
        self._discover(roots)
        layout = "\n".join(f"{type(node).__name__} {node.path}" for node in self.nodes)
        self.layout = hashlib.blake2b(f"{layout} {len(self.constants)}".encode(), digest_size=10).hexdigest()

    def save(self) -> dict[str, Any]:
        """What differs from the baseline now, as plain data that shares no memory with the objects."""
        return _Save(self).run()

    def load(self, state: Mapping[str, Any]) -> None:
        """Put a saved state back; ``SnapshotError`` where it is of objects built otherwise."""
        if state["layout"] != self.layout:
            raise SnapshotError(
                f"this state is of objects laid out otherwise ({state['layout']}, here {self.layout}); restore it into "
                "a simulator of the same task, settings and package versions"
            )
        for node in self.nodes:
            if node.changed():
                node.revert(self)
        _Load(self, state).run()

    def captured(self, value: object) -> bool:
        """Whether ``value`` is an object whose attributes are captured."""
        cls = type(value)
        known = self._captured.get(cls)
        if known is None:
            name = f"{cls.__module__}.{cls.__qualname__}"
            known = self._captured[cls] = (
                any(cls.__module__ == m or cls.__module__.startswith(m + ".") for m in self._modules)
                and not any(name.startswith(prefix) for prefix in self._exclude)
                and not isinstance(value, (type, enum.Enum))
            )
        return known

    def opaque(self, value: object) -> bool:
        """Whether ``value`` is neither data, nor a captured object, nor known since the baseline."""
        if type(value) in _PLAIN or id(value) in self.node_of or id(value) in self.constant_of:
            return False
        return not (isinstance(value, _DATA) or self.captured(value))

    def _discover(self, roots: Mapping[str, object]) -> None:
        queue: deque[tuple[str, object]] = deque(roots.items())
        while queue:
            path, value = queue.popleft()
            if type(value) in _PLAIN or id(value) in self.node_of or id(value) in self.constant_of:
                continue
            node = self._node(path, value)
            if node is not None:
                self.node_of[id(value)] = len(self.nodes)
                self.nodes.append(node)
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

    def _node(self, path: str, value: object) -> "_Node | None":
        if isinstance(value, dict):
            return _Items(path, value)
        if isinstance(value, (list, deque)):
            return _Elements(path, value)
        if isinstance(value, set):
            return _Members(path, value)
        if isinstance(value, np.ndarray):
            if not value.flags.writeable or self.memory.describe(value) is not None:
                return None
            return _ObjectArray(path, value) if value.dtype.hasobject else _Array(path, value)
        if isinstance(value, _GENERATORS):
            return _Generator(path, value)
        return _Attributes(path, value) if self.captured(value) else None


class _Node:
    """Something mutable found at the baseline, and its content then."""

    __slots__ = ("path", "target")

    def __init__(self, path: str, target: Any):
        self.path, self.target = path, target

    def children(self) -> Iterator[tuple[str, object]]:
        return iter(())

    def changed(self) -> bool:
        raise NotImplementedError

    def revert(self, capture: ObjectCapture) -> None:
        raise NotImplementedError

    def save(self, save: "_Save", source: Any) -> list[Any] | None:
        """What makes ``source`` (this node's target, or what took its place) differ from the baseline."""
        raise NotImplementedError

    def load(self, load: "_Load", content: list[Any]) -> None:
        raise NotImplementedError


class _Items(_Node):
    __slots__ = ("base", "keys", "live", "values")

    def __init__(self, path: str, target: Any):
        super().__init__(path, target)
        self.live: dict[Any, Any] = self.attributes(target)
        self.base = dict(self.live)
        self.keys, self.values = list(self.base), list(self.base.values())

    def attributes(self, target: Any) -> dict[Any, Any]:
        return target

    def children(self) -> Iterator[tuple[str, object]]:
        for i, (key, value) in enumerate(self.base.items()):
            name = repr(key) if type(key) in _PLAIN else f"#{i}"
            yield f"{self.path}[{name}]", value
            yield f"{self.path}[{name}].key", key

    def changed(self) -> bool:
        live, values = self.live, self.values
        return len(live) != len(values) or not (all(map(is_, live.values(), values)) and all(map(is_, live, self.keys)))

    def revert(self, capture: ObjectCapture) -> None:
        kept = {
            key: value
            for key, value in self.live.items()
            if value is not self.base.get(key, _MISSING) and capture.opaque(value)
        }
        self.live.clear()
        self.live.update({**self.base, **kept})

    def save(self, save: "_Save", source: Any) -> list[Any] | None:
        live, base = self.attributes(source), self.base
        entries = []
        for key, value in live.items():
            counterpart = base.get(key, _MISSING)
            if value is not counterpart and not save.capture.opaque(value):
                path = f"{self.path}[{key!r}]"
                entries.append((save.value(key, key, path), save.value(value, counterpart, path)))
        gone = [save.value(key, key, self.path) for key in base if key not in live]
        reordered = type(self) is _Items and list(live) != self.keys
        order = [save.value(key, key, self.path) for key in live] if reordered else None
        return [entries, gone, order] if entries or gone or reordered else None

    def load(self, load: "_Load", content: list[Any]) -> None:
        entries, gone, order = content
        for key in gone:
            self.live.pop(load.value(key), None)
        for key, value in entries:
            self.live[load.value(key)] = load.value(value)
        if order is not None:
            keys = [load.value(key) for key in order]
            items = {key: self.live[key] for key in keys if key in self.live}
            self.live.clear()
            self.live.update(items)


class _Attributes(_Items):
    __slots__ = ()

    def attributes(self, target: Any) -> dict[Any, Any]:
        slots = [name for cls in type(target).__mro__ for name in cls.__dict__.get("__slots__", ())]
        if any(name not in ("__dict__", "__weakref__") for name in slots):
            raise SnapshotError(f"cannot capture {type(target).__name__} at {self.path}: it has __slots__; exclude it")
        return vars(target)

    def children(self) -> Iterator[tuple[str, object]]:
        return ((f"{self.path}.{key}", value) for key, value in self.base.items())


class _Elements(_Node):
    __slots__ = ("base",)

    def __init__(self, path: str, target: Any):
        super().__init__(path, target)
        self.base = list(target)

    def children(self) -> Iterator[tuple[str, object]]:
        return ((f"{self.path}[{i}]", value) for i, value in enumerate(self.base))

    def changed(self) -> bool:
        return len(self.target) != len(self.base) or not all(map(is_, self.target, self.base))

    def revert(self, capture: ObjectCapture) -> None:
        self.target.clear()
        self.target.extend(self.base)

    def save(self, save: "_Save", source: Any) -> list[Any] | None:
        return [save.elements(source, self.base, self.path)]

    def load(self, load: "_Load", content: list[Any]) -> None:
        values = [load.value(item) for item in content[0]]
        self.target.clear()
        self.target.extend(values)


class _ObjectArray(_Elements):
    """An array of Python objects (``numpy.array(None)`` is one)."""

    __slots__ = ()

    def __init__(self, path: str, target: Any):
        _Node.__init__(self, path, target)
        self.base = target.reshape(-1).tolist()

    def changed(self) -> bool:
        return not all(map(is_, self.target.flat, self.base))

    def revert(self, capture: ObjectCapture) -> None:
        self.target.flat = self.base

    def save(self, save: "_Save", source: Any) -> list[Any] | None:
        return [save.elements(source.reshape(-1).tolist(), self.base, self.path)]

    def load(self, load: "_Load", content: list[Any]) -> None:
        self.target.flat = [load.value(item) for item in content[0]]


class _Members(_Node):
    __slots__ = ("base",)

    def __init__(self, path: str, target: Any):
        super().__init__(path, target)
        self.base = set(target)

    def changed(self) -> bool:
        return self.target != self.base

    def revert(self, capture: ObjectCapture) -> None:
        self.target.clear()
        self.target.update(self.base)

    def save(self, save: "_Save", source: Any) -> list[Any] | None:
        return [[save.value(item, item, self.path) for item in sorted(source, key=repr)]]

    def load(self, load: "_Load", content: list[Any]) -> None:
        self.target.clear()
        self.target.update(load.value(item) for item in content[0])


class _Array(_Node):
    __slots__ = ("base",)

    def __init__(self, path: str, target: Any):
        super().__init__(path, target)
        self.base = target.tobytes()

    def changed(self) -> bool:
        return self.target.tobytes() != self.base

    def revert(self, capture: ObjectCapture) -> None:
        self.target[...] = np.frombuffer(self.base, self.target.dtype).reshape(self.target.shape)

    def save(self, save: "_Save", source: Any) -> list[Any] | None:
        return [source.copy()]

    def load(self, load: "_Load", content: list[Any]) -> None:
        self.target[...] = content[0]


class _Generator(_Node):
    __slots__ = ("base",)

    def __init__(self, path: str, target: Any):
        super().__init__(path, target)
        self.base = _generator_state(target)

    def changed(self) -> bool:
        return not _same(_generator_state(self.target), self.base)

    def revert(self, capture: ObjectCapture) -> None:
        _set_generator_state(self.target, self.base)

    def save(self, save: "_Save", source: Any) -> list[Any] | None:
        return [_generator_state(source)]

    def load(self, load: "_Load", content: list[Any]) -> None:
        _set_generator_state(self.target, content[0])


class _Save:
    """One save. Values are encoded as themselves where plain, otherwise as a tuple that begins with a tag."""

    def __init__(self, capture: ObjectCapture):
        self.capture = capture
        self.new: list[Any] = []
        self.seen: dict[int, tuple[Any, ...]] = {}
        self.kept: list[object] = []
        self.replaced: dict[int, object] = {}

    def run(self) -> dict[str, Any]:
        contents: dict[int, list[Any] | None] = {}
        for index, node in enumerate(self.capture.nodes):
            if node.changed():
                contents[index] = node.save(self, node.target)
        done: set[int] = set()
        while len(done) < len(self.replaced):
            for index, source in [item for item in self.replaced.items() if item[0] not in done]:
                contents[index] = self.capture.nodes[index].save(self, source)
                done.add(index)
        nodes = [(index, content) for index, content in sorted(contents.items()) if content is not None]
        return {"layout": self.capture.layout, "nodes": nodes, "new": self.new}

    def value(self, value: Any, counterpart: Any, path: str) -> Any:
        if type(value) in _PLAIN or isinstance(value, np.generic):
            return value
        known = self.seen.get(id(value))
        if known is not None:
            return known
        index = self.capture.node_of.get(id(value))
        if index is not None:
            if index in self.replaced:
                raise SnapshotError(f"{path} and what took its place since the baseline are both in use")
            return ("node", index)
        index = self.capture.constant_of.get(id(value))
        if index is not None:
            return ("constant", index)
        if isinstance(value, np.ndarray):
            return self._array(value, path)
        if isinstance(value, enum.Enum):
            return ("enum", self._type(value, path), value.name)
        if isinstance(value, tuple):
            cls = None if type(value) is tuple else self._type(value, path)
            return ("tuple", cls, self.elements(value, counterpart, path))
        if self.capture.captured(value):
            return self._object(value, counterpart, path)
        return self._container(value, counterpart, path)

    def elements(self, values: Any, counterpart: Any, path: str) -> list[Any]:
        base = counterpart if isinstance(counterpart, (list, deque, tuple)) else ()
        known = [*base, *[_MISSING] * max(0, len(values) - len(base))]
        return [self.value(item, known[i], f"{path}[{i}]") for i, item in enumerate(values)]

    def _type(self, value: object, path: str) -> int:
        index = self.capture.constant_of.get(id(type(value)))
        return self._refuse(value, path) if index is None else index

    def _object(self, value: Any, counterpart: Any, path: str) -> tuple[Any, ...]:
        index = self.capture.node_of.get(id(counterpart))
        if index is None or type(counterpart) is not type(value) or self.replaced.get(index, value) is not value:
            return self._refuse(value, path)
        self.replaced[index] = value
        return self._remember(value, ("node", index))

    def _array(self, array: np.ndarray, path: str) -> tuple[Any, ...]:
        if array.base is not None:
            described = self.capture.memory.describe(array)
            if described is not None:
                return self._remember(array, ("memory", *described))
        if array.dtype.hasobject:
            items = self.elements(array.reshape(-1).tolist(), None, path)
            return self._append(array, ("objects", items, list(array.shape)))
        base = array.base
        if isinstance(base, np.ndarray) and base.base is None and base.size and not base.dtype.hasobject:
            owner = self.value(base, None, path)
            return self._remember(array, ("view", owner, *_layout_in(array, base)))
        if array.flags.c_contiguous or not array.flags.f_contiguous:
            return self._append(array, ("array", array.copy()))
        return self._append(array, ("fortran", array.T.copy()))

    def _container(self, value: Any, counterpart: Any, path: str) -> tuple[Any, ...]:
        if isinstance(value, _GENERATORS):
            return self._append(value, ("generator", _generator_state(value)))
        kind = type(value).__name__
        if _NEW_CONTAINERS.get(kind) is not type(value):
            return self._refuse(value, path)
        reference = self._append(value, None)
        content: list[Any]
        if isinstance(value, dict):
            base = counterpart if isinstance(counterpart, dict) else {}
            content = []
            for key, item in value.items():
                where = f"{path}[{key!r}]"
                content.append((self.value(key, key, where), self.value(item, base.get(key, _MISSING), where)))
        elif isinstance(value, set):
            content = [self.value(item, item, path) for item in sorted(value, key=repr)]
        else:
            content = self.elements(value, counterpart, path)
        self.new[reference[1]] = (kind, content, value.maxlen if isinstance(value, deque) else None)
        return reference

    def _append(self, value: object, content: Any) -> tuple[Any, ...]:
        self.new.append(content)
        return self._remember(value, ("new", len(self.new) - 1))

    def _remember(self, value: object, reference: tuple[Any, ...]) -> tuple[Any, ...]:
        self.kept.append(value)  # alive until the save ends, so that no other object gets its id
        self.seen[id(value)] = reference
        return reference

    def _refuse(self, value: object, path: str) -> Any:
        raise SnapshotError(
            f"cannot capture {path}: a {type(value).__module__}.{type(value).__qualname__} that was not there when the "
            "simulator was built; exclude its class if it holds no state"
        )


class _Load:
    def __init__(self, capture: ObjectCapture, state: Mapping[str, Any]):
        self.capture, self.state = capture, state
        self.built: dict[int, Any] = {}

    def run(self) -> None:
        for index, content in self.state["nodes"]:
            self.capture.nodes[index].load(self, content)

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
            return self.capture.constants[what][rest[0]]  # type: ignore[index]
        values = [self.value(item) for item in rest[0]]
        return tuple(values) if what is None else self.capture.constants[what](*values)  # type: ignore[operator]

    def _new(self, number: int) -> Any:
        kind, content, *rest = self.state["new"][number]
        value: Any
        if kind == "array":
            value = content.copy()
        elif kind == "fortran":
            value = content.copy().T
        elif kind == "generator":
            value = _new_generator(content)
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
        ordered = sorted((_address(a), a.nbytes, name) for name, a in fields.items() if a.nbytes)
        self.starts = [start for start, _, _ in ordered]
        self.ordered = ordered

    def describe(self, array: np.ndarray) -> tuple[Any, ...] | None:
        if array.base is None or not array.size or (isinstance(array.base, np.ndarray) and array.base.base is None):
            return None
        address = _address(array)
        at = bisect_right(self.starts, address) - 1
        if at < 0 or address >= self.ordered[at][0] + self.ordered[at][1]:
            return None
        name = self.ordered[at][2]
        return (name, *_layout_in(array, self.fields[name]))


def _layout_in(array: np.ndarray, owner: np.ndarray) -> tuple[Any, ...]:
    return (_address(array) - _address(owner), list(array.shape), list(array.strides), array.dtype.str)


def _strided(owner: np.ndarray, layout: Sequence[Any]) -> np.ndarray:
    offset, shape, strides, dtype = layout
    return np.ndarray(tuple(shape), np.dtype(dtype), owner.ravel(order="K"), offset, tuple(strides))


def _address(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]


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


def _generator_state(generator: Any) -> Any:
    if isinstance(generator, np.random.Generator):
        return generator.bit_generator.state
    if isinstance(generator, np.random.RandomState):
        return generator.get_state(legacy=False) | {"legacy": True}
    return {"python": generator.getstate()}


def _set_generator_state(generator: Any, state: Any) -> None:
    if isinstance(generator, np.random.Generator):
        generator.bit_generator.state = state
    elif isinstance(generator, np.random.RandomState):
        generator.set_state({key: value for key, value in state.items() if key != "legacy"})
    else:
        generator.setstate(state["python"])


def _new_generator(state: Any) -> Any:
    if "python" in state:
        generator: Any = random.Random()
    elif state["bit_generator"] not in _BIT_GENERATORS:
        raise SnapshotError(f"unknown random bit generator {state['bit_generator']!r}; known: {_BIT_GENERATORS}")
    elif "legacy" in state:
        generator = np.random.RandomState()
    else:
        generator = np.random.Generator(getattr(np.random, state["bit_generator"])())
    _set_generator_state(generator, state)
    return generator


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_same(a[key], b[key]) for key in a)
    return bool(np.array_equal(a, b)) if isinstance(a, np.ndarray) else a == b
