"""Reading the tabletop's sentences, by the grammar that the World speaks them with."""

import re
from dataclasses import dataclass
from functools import cache, lru_cache

from policies.tabletop.scene import Scene, shared
from simeval.errors import InstructionError


@dataclass(frozen=True)
class Reference:
    """How a sentence names a thing: ``role`` is its placeholder (``object1``, ``zone``), the rest the words used."""

    role: str
    colour: str | None = None
    shape: str | None = None
    side: str | None = None

    def find(self, scene: Scene) -> int | None:
        """The number of the thing in the scene, if it is there."""
        kind = self.role.rstrip("0123456789")
        if kind == "zone":
            return scene.zone(self.colour)
        if kind == "button":
            return scene.button(self.colour)
        if kind == "drawer":
            return shared("layout.json")["drawers"].index(self.side)
        return scene.thing(self.colour, self.shape)


@dataclass(frozen=True)
class Sentence:
    """What an instruction asks for: a task and the things that it is about."""

    task: str
    references: tuple[Reference, ...]


@lru_cache(maxsize=4096)
def parse(instruction: str) -> Sentence:
    """What ``instruction`` asks for; ``InstructionError`` if it is no sentence of the tabletop's grammar."""
    for task, pattern in _patterns():
        match = pattern.fullmatch(instruction)
        if match:
            words: dict[str, dict[str, str]] = {}
            for group, value in match.groupdict().items():
                role, *word = group.split("__")
                if word and value is not None:
                    words.setdefault(role, {})[word[0]] = _shape_names().get(value, value)
            return Sentence(task, tuple(Reference(role, **said) for role, said in words.items()))
    examples = "; ".join(templates[0] for templates in list(shared("grammar.json")["templates"].values())[:4])
    raise InstructionError(
        f"the tabletop expert cannot read the instruction {instruction!r}; it knows sentences such as: {examples} "
        "(assets/tabletop/grammar.json)"
    )


@cache
def _shape_names() -> dict[str, str]:
    return {word: shape for shape, words in shared("grammar.json")["shapes"].items() for word in words}


@cache
def _patterns() -> list[tuple[str, re.Pattern[str]]]:
    """Task and regular expression of each template; its groups are ``role`` and ``role__word__alternative``."""
    grammar, layout = shared("grammar.json"), shared("layout.json")
    vocabulary = {
        "colour": list(layout["colours"]),
        "shape": list(_shape_names()),
        "side": list(layout["drawers"]),
    }

    def phrase(role: str) -> str:
        options = [
            re.sub(r"\{(\w+)\}", lambda m: f"(?P<{role}__{m[1]}__{number}>{'|'.join(vocabulary[m[1]])})", text)  # noqa: B023
            for number, text in enumerate(grammar["phrases"][role.rstrip("0123456789")])
        ]
        return f"(?P<{role}>{'|'.join(options)})"

    def pattern(template: str) -> str:
        said: set[str] = set()

        def once(match: re.Match[str]) -> str:
            role = match[1]
            if role in said:
                return f"(?P={role})"
            said.add(role)
            return phrase(role)

        return re.sub(r"\{(\w+)\}", once, template)

    return [
        (task, re.compile(pattern(template)))
        for task, templates in grammar["templates"].items()
        for template in templates
    ]
