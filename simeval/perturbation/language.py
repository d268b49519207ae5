"""Axes ``language``, ``language.clause``, ``language.typo`` and ``language.task``: what the policy is told.

Made by rules from ``assets/language/rewriting.json``, so that the same seed gives the same words everywhere. A further
edit, clause or typo leaves those before it in place: a severer perturbation says all that a milder one does.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np

from simeval.errors import ConfigError
from simeval.noise import Key
from simeval.perturbation.effect import Effect, Identity, amounts, seed_of, whole_amount
from simeval.types import Perturbation, WorldSpec

_WRAPPED = "{}"


@cache
def _data() -> Mapping[str, Any]:
    return json.loads((files("assets") / "language" / "rewriting.json").read_text(encoding="utf-8"))


def _generator(seed: int, what: str) -> np.random.Generator:
    return Key(seed).stream("language").event(what)


@dataclass(frozen=True, slots=True)
class Told(Effect):
    """Other words for the instruction, a function of the instruction alone."""

    rewrite: Callable[[str], str]

    def instruction(self, instruction: str) -> str:
        """See ``Effect.instruction``."""
        return self.rewrite(instruction)


def _told(perturbation: Perturbation, rewrite: Callable[[str], str]) -> Effect:
    if perturbation.from_step or perturbation.to_step is not None:
        raise ConfigError(
            f"perturbation axis {perturbation.axis} holds for the whole episode, as a policy is told one instruction; "
            "leave out from_step and to_step (a branch may be told another: Rollout.branch)"
        )
    return Told(rewrite)


def paraphrase(perturbation: Perturbation, spec: WorldSpec) -> Effect:
    """The effect of axis ``language``: ``edits`` rewritings that keep the meaning, as far as the sentence has so many.

    ``seed`` settles which: phrases are exchanged for others that mean the same, and the sentence is wrapped in a
    request.
    """
    edits, seed = whole_amount(perturbation, "edits", ("seed",)), seed_of(perturbation)
    return _told(perturbation, lambda sentence: paraphrased(sentence, edits, seed)) if edits else Identity()


def clauses(perturbation: Perturbation, spec: WorldSpec) -> Effect:
    """The effect of axis ``language.clause``: so many ``clauses`` around the sentence that say nothing of the task."""
    count, seed = whole_amount(perturbation, "clauses", ("seed",)), seed_of(perturbation)
    return _told(perturbation, lambda sentence: with_clauses(sentence, count, seed)) if count else Identity()


def typos(perturbation: Perturbation, spec: WorldSpec) -> Effect:
    """The effect of axis ``language.typo``: each letter is mistyped with probability ``rate``, as ``seed`` settles."""
    rate, seed = amounts(perturbation, ("rate",), ("seed",), ("rate",))["rate"], seed_of(perturbation)
    return _told(perturbation, lambda sentence: mistyped(sentence, rate, seed)) if rate else Identity()


def task_change(perturbation: Perturbation, spec: WorldSpec) -> Effect:
    """The effect of axis ``language.task``: ``instruction`` in place of the start's own.

    Without it, ``seed`` settles which words of the sentence are exchanged (:func:`another_task`); without either
    nothing is.
    """
    amounts(perturbation, (), ("instruction", "seed"))
    given = perturbation.params.get("instruction")
    if given is not None and not isinstance(given, str):
        raise ConfigError(f"{perturbation.axis}: instruction is a text; received {given!r}")
    if given is not None:
        return _told(perturbation, lambda sentence: given)
    if "seed" not in perturbation.params:
        return Identity()
    seed = seed_of(perturbation)
    return _told(perturbation, lambda sentence: another_task(sentence, seed))


def paraphrased(sentence: str, edits: int, seed: int) -> str:
    """``sentence`` after up to ``edits`` rewritings, drawn by ``seed`` without replacement, that do not overlap."""
    rng = _generator(seed, "paraphrase")
    # Every choice is drawn before any is made, so that a further edit changes none before it.
    candidates = [(begin, end, str(rng.choice(others))) for begin, end, others in _phrases(sentence)]
    wrapper = str(rng.choice(_data()["wrappers"]))
    chosen: list[tuple[int, int, str]] = []
    wrapped = False
    for index in rng.permutation(len(candidates) + 1):
        if len(chosen) + wrapped == edits:
            break
        if index == len(candidates):
            wrapped = True
        elif all(end <= candidates[index][0] or candidates[index][1] <= begin for begin, end, _ in chosen):
            chosen.append(candidates[index])
    for begin, end, text in sorted(chosen, reverse=True):
        sentence = sentence[:begin] + _cased_as(text, sentence[begin:end]) + sentence[end:]
    return _wrap(sentence, wrapper) if wrapped else sentence


def _phrases(sentence: str) -> Iterator[tuple[int, int, list[str]]]:
    """Where the sentence has phrases with others that mean the same: begin, end, the others; in a fixed order."""
    for phrase, others in _data()["phrases"].items():
        for match in re.finditer(rf"\b{re.escape(phrase)}\b", sentence, re.IGNORECASE):
            yield match.start(), match.end(), others


def _cased_as(text: str, model: str) -> str:
    return text[0].upper() + text[1:] if model[0].isupper() else text


def _wrap(sentence: str, wrapper: str) -> str:
    """The sentence inside a request, in the case and with the full stop that it had."""
    body = sentence.rstrip(".")
    stop = "" if wrapper.endswith("?") else sentence[len(body) :]
    text = wrapper.replace(_WRAPPED, body if wrapper.startswith(_WRAPPED) else body[:1].lower() + body[1:])
    return _cased_as(text, sentence) + stop


def with_clauses(sentence: str, count: int, seed: int) -> str:
    """``sentence`` with up to ``count`` clauses that say nothing of a task, before and after it by turns."""
    rng = _generator(seed, "clause")
    before = [str(text) for text in rng.permutation(_data()["clauses_before"])]
    after = [str(text) for text in rng.permutation(_data()["clauses_after"])]
    first = int(rng.integers(2))
    ahead = min((count + first) // 2, len(before))
    body = sentence if sentence.endswith((".", "?", "!")) else sentence + "."
    behind = after[: count - ahead]
    return " ".join([*reversed(before[:ahead]), body, *behind])


def mistyped(sentence: str, rate: float, seed: int) -> str:
    """``sentence`` with letters exchanged with the next, left out, doubled, or mistaken for a neighbouring key's."""
    rng = _generator(seed, "typo")
    draws, neighbours = rng.random((len(sentence), 3)), _data()["neighbours"]
    typed: list[str] = []
    position = 0
    while position < len(sentence):
        letter, (chance, kind, which) = sentence[position], draws[position]
        position += 1
        near = neighbours.get(letter.lower())
        if near is None or chance >= rate:
            typed.append(letter)
        elif kind < 0.25 and position < len(sentence) and sentence[position].isalpha():
            typed.append(sentence[position] + letter)
            position += 1
        elif kind < 0.5:
            typed.append(letter * 2)
        elif kind < 0.75:
            slip = near[int(which * len(near))]
            typed.append(slip.upper() if letter.isupper() else slip)
        # else: left out
    return "".join(typed)


def another_task(sentence: str, seed: int) -> str:
    """Another task in the words of ``sentence``: two colours of it exchanged, one replaced, or a word by its opposite.

    A sentence that has neither becomes "stay where you are and do not move".
    """
    rng = _generator(seed, "task")
    data = _data()
    colours = [colour for colour in data["colours"] if _has(sentence, colour)]
    exchanges = []
    for colour in colours:
        partners = [other for other in (colours if len(colours) > 1 else data["colours"]) if other != colour]
        exchanges.append((colour, str(rng.choice(partners))))
    exchanges += [(one, other) for one, other in data["opposites"] if _has(sentence, one) or _has(sentence, other)]
    if not exchanges:
        return data["another_task"]
    return _exchanged(sentence, *exchanges[int(rng.integers(len(exchanges)))])


def _has(sentence: str, phrase: str) -> bool:
    return re.search(rf"\b{re.escape(phrase)}\b", sentence, re.IGNORECASE) is not None


def _exchanged(sentence: str, one: str, other: str) -> str:
    def partner(match: re.Match[str]) -> str:
        return _cased_as(other if match.group().lower() == one else one, match.group())

    return re.sub(rf"\b(?:{re.escape(one)}|{re.escape(other)})\b", partner, sentence, flags=re.IGNORECASE)
