"""The report, opened in a browser and clicked through: what it shows is what scores.json says."""

import dataclasses
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simeval.episode import Episode
from simeval.reader import Run
from simeval.report import report
from simeval.testing.runs import made_episode, made_episodes, made_rollout, write_made_run
from simeval.timing import binding
from simeval.video import episode_frames
from simeval.wording import mean_return, p_value, percent, points, quantities

playwright = pytest.importorskip("playwright.sync_api", reason="the browser test needs playwright")

_TRACEBACK = "Traceback (most recent call last):\n  File 'world.py', line 7\nSimulatorError: <b>the engine</b> gave up"
_NASTY = "noisy </script><img src=x onerror=alert(1)>"


def _film(episode: Episode) -> tuple[np.ndarray, float] | None:
    frames = episode_frames(episode)
    return (frames, 10.0) if frames is not None and episode.rollout.start.task == "pick" else None


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    rates = {"expert": 0.9, _NASTY: 0.5}
    episodes = list(made_episodes(rates, ["pick", "push"], 6, image_size=64))
    episodes.append(made_episode(made_rollout(_NASTY, "push", 6), False, error=_TRACEBACK, length=5))
    folder = tmp_path_factory.mktemp("report") / "study"
    info = {"config": {"seed": 7}, "sessions": [{"versions": {"mujoco": "3.3.0"}, "hardware": {"cpu": "a chip"}}]}
    recorded = write_made_run(folder, episodes, pending=[made_rollout("expert", "push", 6)], info=info)
    report(recorded, film=_film)
    return recorded


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if chromium is None:
        pytest.skip("no Chromium on PATH; install it to run the report's browser test")
    flags = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
    flags += ["--disable-sync", "--no-first-run"]
    with playwright.sync_playwright() as driver:
        launched = driver.chromium.launch(executable_path=chromium, args=flags)
        yield launched
        launched.close()


class Opened:
    """A page, with what it asked of the network and what it complained about."""

    def __init__(self, browser: Any, run: Run, **context: Any):
        self.page = browser.new_context(**context).new_page()
        self.requests: list[str] = []
        self.complaints: list[str] = []
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.goto((run.path / "report.html").as_uri())


@pytest.fixture
def opened(browser: Any, run: Run) -> Iterator[Opened]:
    opened = Opened(browser, run, viewport={"width": 1280, "height": 900})
    yield opened
    assert opened.complaints == []
    foreign = [url for url in opened.requests if not url.startswith(("file:", "data:", "blob:"))]
    assert foreign == []
    opened.page.context.close()


@pytest.fixture
def scores(run: Run) -> dict[str, Any]:
    return json.loads((run.path / "scores.json").read_text())


@pytest.mark.browser
def test_the_numbers_shown_are_those_of_scores_json(opened: Opened, scores: dict[str, Any]) -> None:
    page = opened.page
    assert page.inner_text("#headline").split() == scores["headline"].split()
    for row in scores["tasks"]:
        cells = page.locator(f'#tasks tr[data-task="{row["task"]}"] td.number[data-arm]')
        cell = next(c for c in cells.all() if c.get_attribute("data-arm") == row["arm"])
        text = cell.inner_text()
        assert text.startswith(percent(row["rate"], row["n"])), text
        assert f"{row['successes']}/{row['n']}" in text
    assert page.locator("#facts").inner_text().startswith(str(scores["requested"]["counted"]))
    for row in scores["not_counted"]:
        assert row["id"] in page.inner_text("#drops")


@pytest.mark.browser
def test_errors_count_as_failures_when_asked(opened: Opened, scores: dict[str, Any]) -> None:
    page = opened.page
    arm = next(arm for arm in scores["arms"] if arm["errors"])
    total = page.locator("#tasks tr.total td.number[data-arm]").nth(1)
    assert f"{arm['successes']}/{arm['n']}" in total.inner_text()
    page.click("#denominator button[data-value=with]")
    assert f"{arm['successes']}/{arm['with_errors']['n']}" in total.inner_text()
    assert arm["with_errors"]["n"] == arm["n"] + 1


@pytest.mark.browser
def test_filters_leave_the_episodes_asked_for(opened: Opened, scores: dict[str, Any]) -> None:
    page = opened.page
    lit = page.locator(".cell[data-id]:not(.dim)")
    assert lit.count() == scores["requested"]["rollouts"]
    page.click("#filter-outcome button[data-value=failure]")
    failures = sum(row["n"] - row["successes"] for row in scores["tasks"])
    assert lit.count() == failures > 0
    assert all("failure" in cell.get_attribute("class") for cell in lit.all())
    page.select_option("#filter-task", "push")
    push = [row for row in scores["tasks"] if row["task"] == "push"]
    assert lit.count() == sum(row["n"] - row["successes"] for row in push)
    assert page.locator("#grid .task").count() == 1
    page.select_option("#filter-task", "")
    page.click("#filter-outcome button[data-value=differs]")
    pair = scores["pairs"][0]
    assert lit.count() >= 2 * (pair["only_a"] + pair["only_b"]) > 0


@pytest.mark.browser
def test_a_click_on_a_cell_opens_its_episode_with_a_video_that_seeks(opened: Opened, run: Run) -> None:
    page = opened.page
    filmed = sorted(path.stem for path in (run.path / "videos").glob("*.mp4"))
    episode = run[filmed[0]]
    page.click(f'.cell[data-id="{episode.id}"]')
    panel = page.locator("#panel")
    text = panel.inner_text()
    assert episode.id in text
    assert episode.rollout.start.instruction in text
    assert str(episode.rollout.seed) in text
    assert re.search(rf"Steps\s+{episode.length}\b", text)
    assert panel.locator("svg path").count() == 1
    video = panel.locator("video")
    page.wait_for_function("document.querySelector('#panel video').readyState >= 2")
    assert video.evaluate("v => v.duration") == pytest.approx((episode.length + 1) / 10, abs=0.11)
    seek = "v.onseeked = () => done(v.currentTime); v.currentTime = v.duration / 2;"
    moved = video.evaluate(f"v => new Promise(done => {{ v.pause(); {seek} }})")
    assert moved == pytest.approx((episode.length + 1) / 20, abs=0.11)
    page.keyboard.press("ArrowRight")
    assert episode.id not in panel.inner_text()
    page.keyboard.press("Escape")
    assert panel.is_hidden()


@pytest.mark.browser
def test_cells_with_a_video_are_marked_and_the_others_say_how_to_get_one(opened: Opened, run: Run) -> None:
    page = opened.page
    videos = {path.stem for path in (run.path / "videos").glob("*.mp4")}
    marked = page.locator(".cell.filmed").evaluate_all("cells => cells.map(cell => cell.dataset.id)")
    assert set(marked) == videos
    assert page.locator("#outcome-legend", has_text="has a video").count() == 1
    without = next(e.id for e in run if e.id not in videos and e.status == "done")
    page.click(f'.cell[data-id="{without}"]')
    assert "simeval report RUN --videos N" in page.inner_text("#panel")
    page.click(f'.cell[data-id="{marked[0]}"]')
    assert "--videos" not in page.inner_text("#panel")


@pytest.mark.browser
def test_an_error_shows_its_traceback_as_text_and_names_run_nothing(opened: Opened) -> None:
    page = opened.page
    page.click(".cell.error")
    assert page.locator("#panel pre").inner_text() == _TRACEBACK
    assert page.locator("#panel h3").inner_text().startswith(_NASTY)
    assert page.locator("img").count() == 0


@pytest.mark.browser
def test_the_page_follows_the_system_theme_and_fits_a_phone(browser: Any, run: Run) -> None:
    phone = Opened(browser, run, viewport={"width": 390, "height": 800}, color_scheme="dark")
    page = phone.page
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.click("#theme")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != dark
    assert phone.complaints == []
    page.context.close()


@pytest.mark.browser
def test_videos_beyond_the_limit_stay_beside_the_page_and_play(browser: Any, run: Run, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(run.path, copy)
    page_path = report(Run(copy), embed_mib=0.0)
    assert b'class="video"' not in page_path.read_bytes()
    opened = Opened(browser, Run(copy))
    filmed = sorted(path.stem for path in (copy / "videos").glob("*.mp4"))
    opened.page.click(f'.cell[data-id="{filmed[0]}"]')
    opened.page.wait_for_function("document.querySelector('#panel video').readyState >= 2")
    assert opened.page.locator("#panel video").evaluate("v => v.duration") > 0
    assert opened.complaints == []
    opened.page.context.close()


def test_a_success_and_a_failure_of_each_task_and_policy_are_filmed_once(run: Run) -> None:
    done = [episode for episode in run if episode.status == "done" and episode.rollout.start.task == "pick"]
    outcomes = {(episode.rollout.policy, episode.succeeded) for episode in done}
    videos = {path.name: path.stat().st_mtime_ns for path in (run.path / "videos").glob("*.mp4")}
    assert len(videos) == len(outcomes)
    report(Run(run.path), film=_film)
    assert {path.name: path.stat().st_mtime_ns for path in (run.path / "videos").glob("*.mp4")} == videos


def test_the_time_of_inference_and_what_binds_are_on_the_page(tmp_path: Path) -> None:
    episode = made_episode(made_rollout("p<b>", "pick", 0), True)
    episode.ending = dataclasses.replace(episode.ending, inference={250: 30, 270: 1})
    said = {"worlds": {"world": {"control_dt": 0.05}}, "policies": {"world": {"p<b>": {"executed": 5}}}}
    run = write_made_run(tmp_path / "timed", [episode], info={"conventions": said})
    section = report(run).read_text().split('<section id="timing">')[1].split("</section>")[0]
    (row,) = json.loads((run.path / "scores.json").read_text())["timing"]
    assert "<td>p&lt;b&gt;<small>world</small></td>" in section
    for shown in (f"{row['inference_ms']['p50']:.3g}", f"{row['inference_ms']['p99']:.3g}", "250", binding(row)):
        assert f">{shown}</td>" in section
    untimed = write_made_run(tmp_path / "untimed", [made_episode(made_rollout("p", "pick", 0), True)])
    assert 'id="timing"' not in report(untimed).read_text()


def test_a_run_in_which_nothing_counts_still_has_a_report(tmp_path: Path) -> None:
    run = write_made_run(tmp_path / "empty", [], pending=[made_rollout("expert", "pick", 0)])
    page = report(run).read_text()
    assert "no success rate" in page
    assert list(run.path.glob(".*.tmp")) == []


@pytest.mark.browser
def test_without_success_the_page_shows_returns_and_no_rate(browser: Any, tmp_path: Path) -> None:
    episodes = [
        made_episode(made_rollout(policy, "run", index), policy == "fast", success_hold=0)
        for index in range(8)
        for policy in ("fast", "slow")
    ]
    recorded = write_made_run(tmp_path / "returns", episodes)
    report(recorded)
    scores = json.loads((recorded.path / "scores.json").read_text())
    opened = Opened(browser, recorded)
    page = opened.page
    for arm in scores["arms"]:
        cell = page.locator(f'#tasks tr[data-task] td.number[data-arm="{arm["arm"]}"]').inner_text()
        assert cell.split()[0] == mean_return(arm["return"])[0]
    shown = page.inner_text("#results") + page.inner_text("#overall") + page.inner_text("#pairs")
    assert "%" not in shown.replace("95 %", "")
    assert "Mean return by task" in shown
    assert page.locator("#rate-controls").is_hidden()
    assert page.locator("#filter-outcome button[data-value=success]").is_hidden()
    levels = page.locator(".cell.finished").evaluate_all("cells => cells.map(c => c.style.getPropertyValue('--level'))")
    assert len(levels) == 16
    assert {"0.000", "1.000"} < set(levels)
    page.locator(".cell.finished").first.click()
    assert "Goal reached" not in page.inner_text("#panel")
    assert opened.complaints == []
    page.context.close()


_SCALES = {"pendulum": (1.0, 1000.0), "cheetah": (1e6, -5e6), "tiny": (1e-6, 0.0)}
_OUTSIDE = """() => [...document.querySelectorAll("svg text, td, th")].filter((text) => {
  const box = text.closest("figure, .table"), a = text.getBoundingClientRect(), b = box.getBoundingClientRect();
  return a.width && (a.left < b.left || a.right > b.right);
}).map((text) => text.textContent)"""


@pytest.fixture(scope="module")
def several_worlds(tmp_path_factory: pytest.TempPathFactory) -> Run:
    episodes = [
        made_episode(made_rollout(policy, "pick", index, world="arm"), policy == "good", length=20)
        for index in range(5)
        for policy in ("good", "bad")
    ]
    for task, (scale, shift) in _SCALES.items():
        for index in range(5):
            for policy in ("good", "bad"):
                rollout = made_rollout(policy, task, index, world="gym")
                episode = made_episode(rollout, policy == "good", success_hold=0, length=20)
                reward = episode.source.arrays["reward"]
                reward[...] = reward * scale + shift / 20
                summary = dataclasses.replace(episode.summary, total_reward=float(reward.sum()))
                episode.ending = dataclasses.replace(episode.ending, summary=summary)
                episodes.append(episode)
    recorded = write_made_run(tmp_path_factory.mktemp("worlds") / "study", episodes)
    report(recorded)
    return recorded


@pytest.mark.browser
@pytest.mark.parametrize("width", [1280, 390])
def test_several_worlds_and_scales_are_told_apart_and_fit(browser: Any, several_worlds: Run, width: int) -> None:
    opened = Opened(browser, several_worlds, viewport={"width": width, "height": 800})
    page = opened.page
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    for task, world in {"pick": "arm", **dict.fromkeys(_SCALES, "gym")}.items():
        assert world in page.locator(f'#tasks tr[data-task="{task}"] td').first.inner_text().split()
        assert world in page.locator("#grid .task", has=page.locator(f'h3:has-text("{task}")')).inner_text().split()
    captions = page.locator("#strips figcaption").all_inner_texts()
    assert captions == [*(f"Return · {t} · {'gym' if t in _SCALES else 'arm'}" for t in ("pick", *_SCALES)), _LENGTHS]
    scores = json.loads((several_worlds.path / "scores.json").read_text())
    for row in scores["tasks"]:
        if row["task"] in ("pendulum", "cheetah"):
            cell = page.locator(f'#tasks tr[data-task="{row["task"]}"] td.number[data-arm="{row["arm"]}"]')
            assert cell.inner_text().split()[0] == mean_return(row["return"])[0]
    assert page.locator("#tasks tr.total").count() == 0
    numbers = page.locator("svg text").all_text_contents()
    assert not [text for text in numbers if re.search(r"-\d", text)]
    if width == 1280:
        assert page.evaluate(_OUTSIDE) == []
        assert page.locator("#other-rules .table").evaluate("t => t.scrollWidth <= t.clientWidth")
    assert opened.complaints == []
    page.context.close()


_LENGTHS = "Length [steps] · all tasks"


@pytest.mark.browser
@pytest.mark.parametrize(
    ("low", "high", "labels"),
    [
        (999, 1001, ["999.0", "999.5", "1000.0", "1000.5", "1001.0"]),
        (-0.02, 0.02, ["−0.02", "−0.01", "0", "0.01", "0.02"]),
        (-4e6, 4e6, ["−4M", "−2M", "0", "2M", "4M"]),
        (0, 1, ["0", "0.5", "1.0"]),
    ],
)
def test_ticks_of_an_axis_are_told_apart(opened: Opened, low: float, high: float, labels: list[str]) -> None:
    found = opened.page.evaluate(f"axisTicks({low}, {high}, 1000, 4).map((tick) => tick.text)")
    assert found == labels


@pytest.mark.browser
def test_every_number_is_rounded_on_the_page_as_it_is_in_words(opened: Opened) -> None:
    rates = [(successes / n, n) for n in (1, 7, 16, 40, 96, 100, 160, 400, 999) for successes in range(n + 1)]
    values = [(value / 8, [value / 8 - width, value / 8 + width]) for value in range(-40, 41) for width in (0.5, 4, 40)]
    ps = [step / 10_000 + half for step in range(1, 60) for half in (0, 0.00005)] + [0.00025, 2.5e-7]
    told = opened.page.evaluate(
        "([rates, values, ps]) => ["
        "rates.map(([rate, n]) => percent(rate, n)), rates.map(([rate, n]) => points(-rate, n)), "
        "values.map(([value, ends]) => quantities(value, ends, true)), "
        "values.map(([value]) => quantities(value, null)), ps.map(pValue)]",
        [rates, values, ps],
    )
    assert told[0] == [percent(rate, n) for rate, n in rates]
    assert told[1] == [points(-rate, n) for rate, n in rates]
    assert told[2] == [quantities(value, ends, signed=True) for value, ends in values]
    assert told[3] == [quantities(value, None) for value, _ in values]
    assert told[4] == [p_value(p) for p in ps]


def test_a_half_is_rounded_away_from_zero() -> None:
    assert percent(13 / 40, 40) == "33 %"  # 32.5, whose even neighbour is 32
    assert points(-1 / 8, 8) == "−13"
    assert quantities(-2.5, [-22.5, 17.5], signed=True) == ["−3", "−23", "+18"]


@pytest.mark.browser
def test_an_axis_without_room_for_its_ticks_shows_its_ends(opened: Opened) -> None:
    assert opened.page.evaluate("axisTicks(-0.31, 0.42, 60, 4).map((tick) => tick.text)") == ["−0.3", "0.4"]


@pytest.mark.browser
def test_provenance_lists_settings_within_settings(opened: Opened) -> None:
    texts = opened.page.evaluate(
        """[
            ["reach", "push"], {size: [96, 96], frame: "world"}, 'Chunked {"execute":8,"model":{"depth":2}}', "{broken",
        ].map((value) => {
            const place = document.createElement("div");
            place.append(...plain(value));
            return place.textContent;
        })"""
    )
    assert texts == ["reach, push", "size96, 96frameworld", "Chunkedexecute8modeldepth2", "{broken"]


def test_a_lowest_and_a_highest_return_are_filmed_where_no_success_is_defined(tmp_path: Path) -> None:
    episodes = [
        made_episode(made_rollout("p", "pick", index), bool(index % 2), success_hold=0, image_size=64)
        for index in range(4)
    ]
    recorded = write_made_run(tmp_path / "returns", episodes)
    report(recorded, film=_film)
    ranked = sorted(recorded, key=lambda episode: episode.total_reward)
    assert {path.stem for path in (recorded.path / "videos").glob("*.mp4")} == {ranked[0].id, ranked[-1].id}
