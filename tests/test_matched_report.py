"""The report of a matched study, opened in a browser: what it shows is what scores.json says."""

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from simeval.episode import Episode
from simeval.matched_analysis import studies_of
from simeval.outcomes import read_outcomes
from simeval.reader import Run
from simeval.report import report
from simeval.testing.runs import made_episode, made_rollout, write_made_run
from simeval.types import Perturbation, Rollout
from simeval.video import episode_frames, write_video
from tests.test_report import Opened, browser  # noqa: F401 - a fixture

playwright = pytest.importorskip("playwright.sync_api", reason="the browser test needs playwright")

AXES = ("camera", "lighting", "actuation")
LEVELS = (2.0, 4.0)
STARTS = 9


def rollouts() -> Iterator[tuple[Rollout, bool]]:
    """At severity 4 starts 0 to 3 fail only together, 4 succeeds only together, 5 to 7 fail under actuation."""
    for policy in ("able", "weak"):
        for index in range(STARTS):
            plain = made_rollout(policy, f"task-{index % 2}", index)
            yield plain, True
            yield replace(plain, streams=(("policy", 3),)), index != 8
            for level in LEVELS:
                alone = [Perturbation(axis, level, {"x": level + index % 2}) for axis in AXES]
                hard = level == LEVELS[-1] or policy == "weak"
                for one in alone:
                    yield (
                        replace(plain, perturbations=(one,)),
                        not (hard and one.axis == "actuation" and index in range(4, 8)),
                    )
                yield replace(plain, perturbations=tuple(alone)), not (hard and index in (0, 1, 2, 3, 5, 6, 7))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("matched") / "study"
    recorded = write_made_run(folder, [made_episode(r, won, image_size=64) for r, won in rollouts()])
    for study in studies_of(read_outcomes(recorded))[:1]:
        for outcome in study.notable(1):
            episode: Episode = recorded[outcome.id]
            frames = episode_frames(episode)
            assert frames is not None
            write_video(recorded.path / "videos" / f"{episode.id}.mp4", np.asarray(frames), 10.0)
    report(recorded)
    return recorded


@pytest.fixture
def opened(browser: Any, run: Run) -> Iterator[Opened]:  # noqa: F811
    opened = Opened(browser, run, viewport={"width": 1280, "height": 900})
    yield opened
    assert opened.complaints == []
    opened.page.context.close()


@pytest.fixture
def study(run: Run) -> dict[str, Any]:
    return json.loads((run.path / "scores.json").read_text())["matched"][0]


@pytest.mark.browser
def test_curves_matrices_and_grid_show_the_numbers_of_scores_json(opened: Opened, study: dict[str, Any]) -> None:
    page = opened.page
    assert page.locator("#severity-panels figure").count() == len(AXES) + 1
    assert page.locator("#severity-panels figure").first.locator(".point").count() == 2 * (1 + len(LEVELS))
    (row,) = [row for row in study["combinations"] if row["rank"] == 1]
    cells = page.locator("#at-once .matrix td").all_inner_texts()
    b, c = row["emergent"]["count"], row["compensated"]["count"]
    assert [int(text.split()[0]) for text in cells] == [
        row["conj"]["count"] - b,
        b,
        c,
        STARTS - row["conj"]["count"] - c,
    ]
    assert (b, c) == (4, 1)
    lost = page.locator("#transitions figure", has_text="actuation").locator("td.emergent").inner_text()
    assert lost.split()[0] == "4"
    assert page.locator("#instance-grid .flag.emergent").count() == b
    assert page.locator("#instance-grid .cell").count() == STARTS * (2 + len(AXES))
    assert page.locator("#instance-grid .cell.failure").count() == 4 + 7
    assert "worst axis" in page.inner_text("h1") or "one axis alone" in page.inner_text("h1")


@pytest.mark.browser
def test_a_click_plays_the_unperturbed_run_beside_the_perturbed_one(opened: Opened) -> None:
    page = opened.page
    page.click("#instance-kind button[data-value=emergent]")
    assert page.locator("#instance-grid .arm-row.edge .cell").count() == 2 * 4
    page.locator("#instance-grid .arm-row.edge").last.locator(".cell.filmed").first.click()
    page.wait_for_function("[...document.querySelectorAll('#panel video')].filter(v => v.readyState >= 2).length == 2")
    captions = page.locator("#panel .twins figcaption").all_inner_texts()
    assert captions == ["as it is: success", "all 3 at once: failure"]
    page.locator("#panel .others button", has_text="actuation").click()
    assert page.locator("#panel .twins figcaption").all_inner_texts()[1] == "actuation: success"
    page.keyboard.press("Escape")
    assert page.locator("#panel").is_hidden()


@pytest.mark.browser
def test_severity_and_policy_can_be_chosen_and_all_fits_a_phone(browser: Any, run: Run) -> None:  # noqa: F811
    phone = Opened(browser, run, viewport={"width": 390, "height": 800}, color_scheme="dark")
    page = phone.page
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.click("#rank button:has-text('2')")
    assert page.locator("#instance-grid .cell.failure").count() == 0
    page.click("#study button:has-text('weak')")
    assert page.locator("#instance-grid .cell.failure").count() == 4 + 7
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert phone.complaints == []
    page.context.close()
