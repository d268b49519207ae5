"""The mutable things that a graph of Python objects is made of, and how each is compared, put back and described."""

import random
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from operator import is_, methodcaller
from typing import Any, Protocol

import numpy as np

from simeval.errors import SnapshotError

PLAIN = frozenset({type(None), bool, int, float, str, bytes})
GENERATORS = (np.random.Generator, np.random.RandomState, random.Random)
_BIT_GENERATORS = ("PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64")
_MISSING = object()
_VALUES, _BYTES = methodcaller("values"), methodcaller("tobytes")


class Encoder(Protocol):
    """What encodes a value as plain data, for a node that is saved."""

    def value(self, value: Any, counterpart: Any, where: tuple[Any, ...]) -> Any:
        """``value``, which stands where ``counterpart`` stood at the baseline."""

    def unchanged(self, encoded: Any, counterpart: Any) -> bool:
        """Whether ``encoded`` refers to what stood there at the baseline."""

    def opaque(self, value: object) -> bool:
        """Whether ``value`` is neither data, nor a captured object, nor known since the baseline."""


class Decoder(Protocol):
    """What turns encoded values back into values."""

    opaque: Callable[[object], bool]
    """See ``Encoder``."""

    def value(self, encoded: Any) -> Any:
        """The inverse of :meth:`Encoder.value`."""


class Node(ABC):
    """Something mutable found at the baseline, and its content then."""

    __slots__ = ("path", "target")

    def __init__(self, path: str, target: Any):
        self.path, self.target = path, target

    def children(self) -> Iterator[tuple[str, object]]:
        """What it refers to, with a path for each."""
        return iter(())

    def accepts(self, value: Any) -> bool:
        """Whether ``value``, found in its place, can be described as a new content of it."""
        return type(value) is type(self.target)

    @abstractmethod
    def changed(self) -> bool:
        """Whether its content is no longer that of the baseline."""

    @abstractmethod
    def revert(self, opaque: Callable[[object], bool]) -> None:
        """Put the content of the baseline back; a dictionary leaves alone what is ``opaque`` (see ``Encoder``)."""

    @abstractmethod
    def save(self, encoder: Encoder, source: Any) -> list[Any] | None:
        """What makes ``source`` (its target, or what took its place) differ from the baseline; ``None`` for nothing."""

    @abstractmethod
    def load(self, decoder: Decoder, content: Any) -> None:
        """Put the content of the baseline with a saved difference in place of whatever there is."""


class Items(Node):
    """A dictionary."""

    __slots__ = ("base", "keys", "live", "values")

    def __init__(self, path: str, target: Any):
        super().__init__(path, target)
        self.live: dict[Any, Any] = self.items(target)
        self.base = dict(self.live)
        self.keys, self.values = list(self.base), list(self.base.values())

    def items(self, target: Any) -> dict[Any, Any]:
        """The entries of ``target``."""
        return target

    def children(self) -> Iterator[tuple[str, object]]:
        """See ``Node.children``."""
        for number, (key, value) in enumerate(self.base.items()):
            name = repr(key) if type(key) in PLAIN else f"#{number}"
            yield f"{self.path}[{name}]", value
            yield f"{self.path}[{name}].key", key

    def changed(self) -> bool:
        """See ``Node.changed``."""
        live = self.live
        return not (self._same_keys(live) and all(map(is_, live.values(), self.values)))

    def revert(self, opaque: Callable[[object], bool], spared: Container[Any] = ()) -> None:
        """See ``Node.revert``; entries that are ``spared`` may be left as they are."""
        live, base = self.live, self.base
        if self._same_keys(live):
            for key, value, original in self._differing(live):
                if key not in spared and not opaque(value):
                    live[key] = original
            return
        kept = {k: v for k, v in live.items() if v is not base.get(k, _MISSING) and opaque(v)}
        live.clear()
        live.update(base)
        live.update(kept)

    def save(self, encoder: Encoder, source: Any) -> list[Any] | None:
        """See ``Node.save``."""
        live, base = self.live if source is self.target else self.items(source), self.base
        if same_keys := self._same_keys(live):
            differing = self._differing(live)
        else:
            names = [*(k for k in base if k in live), *(k for k in live if k not in base)]
            items = ((key, live[key], base.get(key, _MISSING)) for key in names)
            differing = [(key, value, original) for key, value, original in items if value is not original]
        entries = []
        for key, value, original in differing:
            if type(value) is not np.ndarray and (equal_plain(value, original) or encoder.opaque(value)):
                continue
            encoded = value if type(value) in PLAIN else encoder.value(value, original, (self.path, key))
            if not (type(encoded) is tuple and encoded[0] == "node" and encoder.unchanged(encoded, original)):
                entries.append([key if type(key) is str else self._key(encoder, key), encoded])
        if same_keys:
            return [entries, [], None] if entries else None
        gone = [self._key(encoder, key) for key in base if key not in live]
        ordered = type(self) is Items and list(live) != self.keys
        order = [self._key(encoder, key) for key in live] if ordered else None
        return [entries, gone, order] if entries or gone or ordered else None

    def _same_keys(self, live: Mapping[Any, Any]) -> bool:
        return list(live) == self.keys

    def _differing(self, live: Mapping[Any, Any]) -> list[tuple[Any, Any, Any]]:
        rows = zip(self.keys, live.values(), self.values, strict=True)
        return [(key, value, original) for key, value, original in rows if value is not original]

    def load(self, decoder: Decoder, content: Any) -> None:
        """See ``Node.load``."""
        entries, gone, order = content
        live = self.live
        saved = {key if type(key) is str else decoder.value(key): value for key, value in entries}
        self.revert(decoder.opaque, saved)
        for key in gone:
            live.pop(decoder.value(key), None)
        for name, value in saved.items():
            live[name] = decoder.value(value) if type(value) is tuple else value
        if order is not None:
            items = [(key, live[key]) for key in map(decoder.value, order) if key in live]
            live.clear()
            live.update(items)

    def _key(self, encoder: Encoder, key: Any) -> Any:
        return key if type(key) in PLAIN else encoder.value(key, key, (self.path, "key"))


class Attributes(Items):
    """The attributes of an object."""

    __slots__ = ()

    def items(self, target: Any) -> dict[Any, Any]:
        """See ``Items.items``."""
        slots = [name for cls in type(target).__mro__ for name in cls.__dict__.get("__slots__", ())]
        if any(name not in ("__dict__", "__weakref__") for name in slots):
            raise SnapshotError(f"cannot capture {type(target).__name__} at {self.path}: it has __slots__; exclude it")
        return vars(target)

    def children(self) -> Iterator[tuple[str, object]]:
        """See ``Node.children``."""
        return ((f"{self.path}.{key}", value) for key, value in self.base.items())


class Elements(Node):
    """A list or a deque."""

    __slots__ = ("base",)

    def __init__(self, path: str, target: Any):
        super().__init__(path, target)
        self.base = self.elements(target)

    def elements(self, target: Any) -> list[Any]:
        """What ``target`` holds."""
        return list(target)

    def fill(self, values: Sequence[Any]) -> None:
        """Make the target hold ``values``."""
        self.target.clear()
        self.target.extend(values)

    def children(self) -> Iterator[tuple[str, object]]:
        """See ``Node.children``."""
        return ((f"{self.path}[{number}]", value) for number, value in enumerate(self.base))

    def accepts(self, value: Any) -> bool:
        """See ``Node.accepts``."""
        return type(value) is type(self.target) and (not isinstance(value, deque) or value.maxlen == self.target.maxlen)

    def changed(self) -> bool:
        """See ``Node.changed``."""
        return len(self.target) != len(self.base) or not all(map(is_, self.target, self.base))

    def revert(self, opaque: Callable[[object], bool]) -> None:
        """See ``Node.revert``."""
        self.fill(self.base)

    def save(self, encoder: Encoder, source: Any) -> list[Any] | None:
        """See ``Node.save``."""
        items, base = self.elements(source), self.base
        if len(items) == len(base) and all(map(is_, items, base)):
            return None
        encoded, same = [], len(items) == len(base)
        for number, item in enumerate(items):
            counterpart = base[number] if number < len(base) else _MISSING
            encoded.append(encoder.value(item, counterpart, (self.path, number)))
            same = same and (equal_plain(item, counterpart) or encoder.unchanged(encoded[-1], counterpart))
        return None if same else [encoded]

    def load(self, decoder: Decoder, content: Any) -> None:
        """See ``Node.load``."""
        self.fill([decoder.value(item) if type(item) is tuple else item for item in content[0]])


class ObjectArray(Elements):
    """An array of Python objects (``numpy.array(None)`` is one)."""

    __slots__ = ()

    def elements(self, target: Any) -> list[Any]:
        """See ``Elements.elements``."""
        return target.reshape(-1).tolist()

    def fill(self, values: Sequence[Any]) -> None:
        """See ``Elements.fill``."""
        self.target.flat = values

    def accepts(self, value: Any) -> bool:
        """See ``Node.accepts``."""
        return isinstance(value, np.ndarray) and value.dtype.hasobject and value.shape == self.target.shape

    def changed(self) -> bool:
        """See ``Node.changed``."""
        return not all(map(is_, self.target.flat, self.base))


class Members(Node):
    """A set."""

    __slots__ = ("base",)

    def __init__(self, path: str, target: Any):
        super().__init__(path, target)
        self.base = set(target)

    def changed(self) -> bool:
        """See ``Node.changed``."""
        return self.target != self.base

    def revert(self, opaque: Callable[[object], bool]) -> None:
        """See ``Node.revert``."""
        self.target.clear()
        self.target.update(self.base)

    def save(self, encoder: Encoder, source: Any) -> list[Any] | None:
        """See ``Node.save``."""
        if source == self.base:
            return None
        return [[encoder.value(item, item, (self.path, "member")) for item in sorted(source, key=repr)]]

    def load(self, decoder: Decoder, content: Any) -> None:
        """See ``Node.load``."""
        self.target.clear()
        self.target.update(decoder.value(item) for item in content[0])


class Array(Node):
    """A writable numpy array of numbers."""

    __slots__ = ("base", "layout")

    def __init__(self, path: str, target: Any):
        super().__init__(path, target)
        self.base = target.tobytes()
        self.layout = (target.dtype, target.shape, target.strides)

    def accepts(self, value: Any) -> bool:
        """See ``Node.accepts``."""
        return (
            type(value) is np.ndarray
            and value.base is None
            and (value.dtype, value.shape, value.strides) == self.layout
        )

    def changed(self) -> bool:
        """See ``Node.changed``."""
        return self.target.tobytes() != self.base

    def revert(self, opaque: Callable[[object], bool]) -> None:
        """See ``Node.revert``."""
        if self.changed():
            self.target[...] = np.frombuffer(self.base, self.target.dtype).reshape(self.target.shape)

    def save(self, encoder: Encoder, source: Any) -> list[Any] | None:
        """See ``Node.save``."""
        return None if source.tobytes() == self.base else [source.copy()]

    def load(self, decoder: Decoder, content: Any) -> None:
        """See ``Node.load``."""
        self.target[...] = content[0]


class Generator(Node):
    """A random generator."""

    __slots__ = ("base",)

    def __init__(self, path: str, target: Any):
        super().__init__(path, target)
        self.base = generator_state(target)

    def accepts(self, value: Any) -> bool:
        """See ``Node.accepts``."""
        state = generator_state(value) if type(value) is type(self.target) else {}
        return bool(state) and state.get("bit_generator") == self.base.get("bit_generator")

    def changed(self) -> bool:
        """See ``Node.changed``."""
        return not _same(generator_state(self.target), self.base)

    def revert(self, opaque: Callable[[object], bool]) -> None:
        """See ``Node.revert``."""
        set_generator_state(self.target, self.base)

    def save(self, encoder: Encoder, source: Any) -> list[Any] | None:
        """See ``Node.save``."""
        return [generator_state(source)]

    def load(self, decoder: Decoder, content: Any) -> None:
        """See ``Node.load``."""
        set_generator_state(self.target, content[0])


class Watch:
    """Tells which nodes need a look: those that were ever seen changed; and, all at once, that no other is.

    The others are compared as one long row of what they refer to, which is many times faster than one by one.
    """

    def __init__(self, nodes: Sequence[Node]):
        self._nodes = nodes
        self.forget()

    def forget(self) -> None:
        """Find out anew which nodes change: those that have not of late are no longer looked at one by one."""
        self._lively: dict[int, None] = {}
        self._settle(range(len(self._nodes)))

    def lively(self) -> dict[int, None]:
        """The indices, in order, of all nodes that may differ from the baseline."""
        if not self._undisturbed():
            quiet = [index for index in range(len(self._nodes)) if index not in self._lively]
            disturbed = [index for index in quiet if self._nodes[index].changed()]
            self._lively = dict.fromkeys(sorted([*self._lively, *disturbed]))
            self._settle(index for index in quiet if index not in self._lively)
        return self._lively

    def _settle(self, quiet: Iterable[int]) -> None:
        nodes = [self._nodes[index] for index in quiet]
        tables = [node for node in nodes if isinstance(node, Items)]
        rows = [node for node in nodes if type(node) is Elements]
        arrays = [node for node in nodes if type(node) is Array]
        known = {id(node) for node in (*tables, *rows, *arrays)}
        self._tables = [node.live for node in tables]
        self._rows = [node.target for node in rows]
        self._sizes = [*(len(node.keys) for node in tables), *(len(node.base) for node in rows)]
        self._keys = [*chain.from_iterable(node.keys for node in tables)]
        self._values = [*chain.from_iterable(node.values for node in tables)]
        self._members = [*chain.from_iterable(node.base for node in rows)]
        self._arrays = [node.target for node in arrays]
        self._bytes = [node.base for node in arrays]
        self._rest = [node for node in nodes if id(node) not in known]

    def _undisturbed(self) -> bool:
        return (
            [*map(len, self._tables), *map(len, self._rows)] == self._sizes
            and list(chain.from_iterable(self._tables)) == self._keys
            and all(map(is_, chain.from_iterable(map(_VALUES, self._tables)), self._values))
            and all(map(is_, chain.from_iterable(self._rows), self._members))
            and list(map(_BYTES, self._arrays)) == self._bytes
            and not any(node.changed() for node in self._rest)
        )


def equal_plain(a: Any, b: Any) -> bool:
    """Whether two plain values, two of numpy's scalars, or two tuples of such, are the same to the bit."""
    if type(a) is not type(b):
        return False
    if type(a) is tuple:
        return len(a) == len(b) and all(map(equal_plain, a, b))
    if type(a) not in PLAIN:
        return isinstance(a, np.generic) and a.dtype.kind in "biuf" and a.tobytes() == b.tobytes()
    return bool(a == b) and (a != 0 or repr(a) == repr(b))  # 0.0 is not -0.0


def generator_state(generator: Any) -> dict[str, Any]:
    """The state of a generator of numpy or of ``random`` as plain data."""
    if isinstance(generator, np.random.Generator):
        return dict(generator.bit_generator.state)
    if isinstance(generator, np.random.RandomState):
        return {**generator.get_state(legacy=False), "legacy": True}
    return {"python": generator.getstate()}


def set_generator_state(generator: Any, state: dict[str, Any]) -> None:
    """The inverse of :func:`generator_state`."""
    if isinstance(generator, np.random.Generator):
        generator.bit_generator.state = state
    elif isinstance(generator, np.random.RandomState):
        generator.set_state({key: value for key, value in state.items() if key != "legacy"})
    else:
        generator.setstate(state["python"])


def new_generator(state: dict[str, Any]) -> Any:
    """A generator in that state."""
    generator: Any
    if "python" in state:
        generator = random.Random()
    elif state["bit_generator"] not in _BIT_GENERATORS:
        raise SnapshotError(f"unknown random bit generator {state['bit_generator']!r}; known: {_BIT_GENERATORS}")
    elif "legacy" in state:
        generator = np.random.RandomState()
    else:
        generator = np.random.Generator(getattr(np.random, state["bit_generator"])())
    set_generator_state(generator, state)
    return generator


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_same(a[key], b[key]) for key in a)
    return bool(np.array_equal(a, b)) if isinstance(a, np.ndarray) else a == b
