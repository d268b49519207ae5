"""Language effects: other words for the same task, clauses, typos, and another task as the negative control."""

import json
import re
from collections import Counter
from difflib import SequenceMatcher
from importlib.resources import files
from itertools import pairwise

import numpy as np
import pytest
from hydra.utils import instantiate
from omegaconf import OmegaConf

from envs.tabletop.tasks import TASKS
from simeval.perturbation import effect_of
from simeval.perturbation.language import another_task, mistyped, paraphrased, with_clauses
from simeval.testing import ToySimulator
from simeval.types import Perturbation

METAWORLD = list(json.loads((files("assets") / "metaworld" / "instructions.json").read_text()).values())
TABLETOP = [TASKS[task].begin(np.random.default_rng(seed))[1] for task in TASKS for seed in range(4)]
LIBERO = [
    "pick up the black bowl between the plate and the ramekin and place it on the plate",
    "open the top drawer and put the bowl inside",
    "put the wine bottle on top of the cabinet",
    "turn on the stove and put the moka pot on it",
    "pick up the alphabet soup and place it in the basket",
    "put the black bowl in the bottom drawer of the cabinet and close it",
    "put the white mug on the left plate and put the yellow and white mug on the right plate",
    "pick up the book and place it in the back compartment of the caddy",
]
SENTENCES = TABLETOP + METAWORLD + LIBERO
TELLING = re.compile(
    r"\b(red|green|blue|yellow|purple|orange|black|white|left|right|top|bottom|front|back|middle|first|then|"
    r"drawer|button|ball|cylinder|door|window|peg|hammer|shelf|handle|lever|bowl|book|wall|box|not|no|off|down|out)\b"
)
RNG = np.random.default_rng


def telling(sentence: str) -> Counter[str]:
    """The words by which a task is told from another, as far as no phrase has others for them."""
    return Counter(TELLING.findall(sentence.lower()))


def likeness(one: str, other: str) -> float:
    return SequenceMatcher(None, one.lower(), other.lower(), autojunk=False).ratio()


@pytest.mark.parametrize("edits", [1, 2, 4])
def test_a_paraphrase_is_other_words_for_the_same_task(edits):
    for seed, sentence in enumerate(SENTENCES):
        other = paraphrased(sentence, edits, seed)
        assert other != sentence
        plain = other.replace("atop", "on top of").replace("and then ", "and ")
        assert telling(plain) == telling(sentence), (sentence, other)
        assert other[0].isupper() == sentence[0].isupper() or other.startswith("I ")
        assert other.endswith("?") or other.endswith(".") == sentence.endswith(".")


def test_phrases_are_exchanged_within_their_sense_and_keep_their_case():
    told = {paraphrased("Press the button of the coffee machine.", 4, seed) for seed in range(40)}
    assert "Could you push the button of the coffee maker?" in told
    assert any(sentence.startswith("Your task is to press on the button") for sentence in told)
    assert paraphrased("shut the left drawer", 0, 3) == "shut the left drawer"


def test_the_same_seed_says_the_same_and_a_further_edit_leaves_those_before_it():
    for seed, sentence in enumerate(SENTENCES):
        assert paraphrased(sentence, 2, seed) == paraphrased(sentence, 2, seed)
        likenesses = [
            likeness(paraphrased(sentence, edits, seed), paraphrased(sentence, 4, seed)) for edits in (0, 1, 2, 4)
        ]
        assert likenesses[-1] == 1
        assert likenesses[1] <= likenesses[2] + 0.05
    assert len({paraphrased(SENTENCES[0], 2, seed) for seed in range(30)}) > 5


@pytest.mark.parametrize("count", [1, 2, 4])
def test_clauses_stand_around_the_sentence_as_it_was(count):
    for seed, sentence in enumerate(SENTENCES):
        told = with_clauses(sentence, count, seed)
        assert told.count(sentence.rstrip(".")) == 1
        clauses = told.replace(sentence.rstrip("."), "").strip(". ").replace(". .", ".")
        assert len([clause for clause in clauses.split(".") if clause.strip()]) == count
        assert told == with_clauses(sentence, count, seed)
    assert with_clauses("go", 100, 0).count(".") == 13


def test_typos_are_as_many_as_the_rate_says_and_leave_a_sentence_of_its_length():
    long = " ".join(SENTENCES)
    for rate in (0.04, 0.16):
        typed = mistyped(long, rate, 3)
        assert len(typed) == pytest.approx(len(long), rel=0.02)
        assert 1 - likeness(typed[:1500], long[:1500]) == pytest.approx(rate * 0.8, rel=0.5)
    assert mistyped(long, 0.0, 3) == long
    assert re.sub("[a-zA-Z]", "", mistyped(long, 1.0, 3)) == re.sub("[a-zA-Z]", "", long)


@pytest.mark.parametrize("sentence", SENTENCES)
def test_another_task_is_never_the_same(sentence):
    for seed in range(4):
        assert another_task(sentence, seed) != sentence


def test_another_task_exchanges_a_colour_or_a_side_where_there_is_one():
    assert {another_task("push the red block to the blue zone", seed) for seed in range(9)} == {
        "push the blue block to the red zone"
    }
    assert another_task("close the left drawer", 1) in ("close the right drawer", "open the left drawer")
    changed = {another_task("reach for the red zone", seed) for seed in range(30)}
    assert changed == {f"reach for the {colour} zone" for colour in ("green", "blue", "yellow", "purple", "orange")}
    assert another_task("Turn the dial by half a turn.", 0) == "stay where you are and do not move"


def told(perturbation: Perturbation, sentence: str) -> str:
    return effect_of(perturbation, ToySimulator().spec).instruction(sentence)


def test_a_given_sentence_stands_in_place_of_the_task_s():
    given = Perturbation("language.task", params={"instruction": "open the drawer"})
    assert told(given, "press the button") == "open the drawer"
    assert told(Perturbation("language.task"), "press the button") == "press the button"


@pytest.mark.parametrize("name", ["paraphrase", "clause", "typo"])
def test_severer_language_is_farther_from_the_sentence(name):
    axis = instantiate(OmegaConf.load(f"configs/perturbation/{name}.yaml"))

    def mean(level: float) -> float:
        drawn = [(axis.draw(level, RNG(seed)), sentence) for seed, sentence in enumerate(SENTENCES)]
        return float(np.mean([1 - likeness(sentence, told(one, sentence)) for one, sentence in drawn]))

    assert all(less < more for less, more in pairwise([mean(0), *map(mean, axis.severities)]))
