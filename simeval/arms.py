"""What is being compared: arms, and names for them that say what tells them apart and no more."""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any, TypeVar

from simeval.types import Rollout, canonical_json, content_hash

NOMINAL = "nominal"
"""The name of the condition without perturbations."""
FAULT = "injection."
"""How the axes of faults in the middle of an episode begin; when they begin is drawn, too."""
_UNPERTURBED = "[]"
_NO_COMPONENTS = {"seed", "redraws"}
"""Parameters of a perturbation that say what was drawn and not what is changed."""
_MOST_TERMS = 2
"""A condition of more axes at one level is named by their number."""
_T = TypeVar("_T")
_LONGEST = 24
"""The most characters of a parameter's value in a name."""


@dataclass(frozen=True, slots=True)
class Arm:
    """One of the things being compared: a policy, under a condition, in a world.

    ``condition`` is the JSON of all perturbations, so that any difference between them makes another arm; but where a
    study draws perturbations of a severity, what was drawn at one severity is one condition (:func:`severity_of`).

    ``world`` is empty where each task is played in one world only: there the world is part of the task, and a policy's
    episodes in all worlds belong together; but among several worlds, one that defines no success stands by itself.
    ``setting`` names what else tells rollouts of the same starts apart (horizon, ``stop_on_success``, instruction), and
    is empty where nothing does.
    """

    policy: str
    world: str = ""
    condition: str = _UNPERTURBED
    setting: str = ""

    @classmethod
    def of(cls, rollout: Rollout) -> "Arm":
        """The arm that a rollout belongs to, as long as nothing else of its run is known."""
        perturbations = [p.to_json() for p in (*rollout.start.perturbations, *rollout.perturbations)]
        for data in perturbations:
            data["level"] = float(data["level"])
        condition = canonical_json(perturbations) if perturbations else _UNPERTURBED
        return _one(cls(rollout.policy, rollout.world, condition))

    @property
    def drawn(self) -> bool:
        """Whether its condition is a severity, at which several perturbations were drawn."""
        return '"components"' in self.condition

    def changed(self, **parts: str) -> "Arm":
        """The arm that differs from this one in ``parts``."""
        return _one(replace(self, **parts))

    def differs_in(self, other: "Arm") -> tuple[str, ...]:
        """Names of the parts in which two arms differ."""
        return tuple(part.name for part in fields(self) if getattr(self, part.name) != getattr(other, part.name))


@lru_cache(4096)
def _one(arm: Arm) -> Arm:
    """Equal arms as one object: a run has few arms and many rollouts."""
    return arm


@lru_cache(65536)
def severity_of(condition: str) -> str:
    """A condition without what was drawn: axes, the components that change and levels, and no values.

    Steps are part of it, but for those at which a fault was injected.
    """
    return canonical_json(
        [
            {
                "axis": data["axis"],
                "components": sorted(data["params"].keys() - _NO_COMPONENTS),
                "level": data["level"],
                **({} if data["axis"].startswith(FAULT) else {k: data[k] for k in ("from_step", "to_step")}),
            }
            for data in json.loads(condition)
        ]
    )


def labels(arms: Iterable[Arm]) -> dict[Arm, str]:
    """A short name for each arm, no two alike: its policy, and whatever else tells the arms apart."""
    arms = list(dict.fromkeys(arms))
    worlds, conditions = {arm.world for arm in arms}, condition_names(arm.condition for arm in arms)

    def label(arm: Arm) -> str:
        parts = [arm.policy, *([conditions[arm.condition]] if len(conditions) > 1 else []), arm.setting]
        return " · ".join(filter(None, parts)) + (f" @ {arm.world}" if len(worlds) > 1 and arm.world else "")

    return _distinct({arm: label(arm) for arm in arms})


def condition_names(conditions: Iterable[str]) -> dict[str, str]:
    """A readable name for each condition: axes with their levels; parameters and steps only where these are equal."""
    parsed = {condition: json.loads(condition) for condition in dict.fromkeys(conditions)}
    alike: dict[str, dict[str, Mapping[str, Any]]] = defaultdict(dict)
    for perturbations in parsed.values():
        for data in perturbations:
            alike[_short(data)][canonical_json(data)] = data
    terms = {
        term: _short(data) if len(group) == 1 else _detailed(data, list(group.values()))
        for group in alike.values()
        for term, data in group.items()
    }
    return _distinct(
        {
            condition: _counted(perturbations)
            or " + ".join(terms[canonical_json(data)] for data in perturbations)
            or NOMINAL
            for condition, perturbations in parsed.items()
        }
    )


def _counted(perturbations: Sequence[Mapping[str, Any]]) -> str:
    """``6 axes 8`` for severities of many axes; nothing for anything else."""
    levels = {data["level"] for data in perturbations}
    if len(perturbations) <= _MOST_TERMS or len(levels) > 1 or not all("components" in data for data in perturbations):
        return ""
    return f"{len(perturbations)} axes {levels.pop():g}"


def _short(data: Mapping[str, Any]) -> str:
    return f"{data['axis']} {data['level']:g}"


def _detailed(data: Mapping[str, Any], group: Sequence[Mapping[str, Any]]) -> str:
    """A perturbation with all in which those of its axis and rounded level differ."""

    def differ(values: Iterable[Any]) -> bool:
        return len(set(map(canonical_json, values))) > 1

    level = repr(data["level"]) if differ(other["level"] for other in group) else f"{data['level']:g}"
    if "components" in data:
        details = [", ".join(data["components"])] if differ(other.get("components") for other in group) else []
    else:
        params = [other.get("params", {}) for other in group]
        details = [
            f"{key} {_clipped(data['params'].get(key))}"
            for key in sorted({key for other in params for key in other})
            if differ([key in other, other.get(key)] for other in params)
        ]
    if differ([other.get("from_step"), other.get("to_step")] for other in group):
        details.append(_steps(data["from_step"], data["to_step"]))
    return f"{data['axis']} {level}" + (f" ({', '.join(details)})" if details else "")


def _clipped(value: Any) -> str:
    text = value if isinstance(value, str) else canonical_json(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def _steps(begin: int, end: int | None) -> str:
    if end is None:
        return f"from step {begin}" if begin else "at every step"
    return f"steps {begin} to {end - 1}" if end > begin + 1 else f"step {begin}"


def _distinct(names: Mapping[_T, str]) -> dict[_T, str]:
    """The names, with a mark of the content where several things would have the same."""
    users: dict[str, list[_T]] = defaultdict(list)
    for thing, name in names.items():
        users[name].append(thing)
    return {
        thing: name if len(users[name]) == 1 else f"{name} #{content_hash(repr(thing))[:6]}"
        for thing, name in names.items()
    }
