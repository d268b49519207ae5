"""A vision-language model is asked over HTTP: what it is shown, how votes count, and what happens without an answer."""

import base64
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from judges.vlm import VisionLanguageModel, counted, parsed
from simeval.cli import main
from simeval.errors import ConfigError
from simeval.films import with_films
from simeval.judge_analysis import audits
from simeval.outcomes import read_outcomes
from simeval.reader import Run
from simeval.score import score
from simeval.testing.runs import made_episode, made_rollout, write_made_run
from simeval.verdicts import judge_run, read_verdicts
from simeval.video import write_video

GOAL = np.array((60, 160, 90))
"""The colour that a picture of ``made_episode`` shows as long as its goal is not covered."""
YES, NO = '{"success": true, "reason": "it is there"}', '{"success": false, "reason": "it is not"}'

Answer = Callable[[dict[str, Any], int], tuple[int, Any]]
"""The request and its number -> status and what to answer: text of the model, or bytes as they are."""


class Server:
    """Speaks the chat-completions protocol; keeps the requests."""

    def __init__(self) -> None:
        self.answer: Answer = lambda request, number: (200, YES)
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.patience = threading.Event()
        self._lock = threading.Lock()
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with server._lock:
                    number = len(server.requests)
                    server.requests.append(request)
                    server.headers.append(dict(self.headers))
                status, said = server.answer(request, number) if self.path == "/v1/chat/completions" else (404, b"")
                message = {"choices": [{"index": 0, "message": {"role": "assistant", "content": said}}]}
                data = said if isinstance(said, bytes) else json.dumps(message).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}/v1"
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self.patience.set()
        self._http.shutdown()
        self._http.server_close()


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.stop()


def judge(server: Server, **settings: Any) -> VisionLanguageModel:
    given = {"votes": 3, "frames": 4, "retries": 0, "wait": 0.01, "timeout": 20.0, "image_size": 32} | settings
    return VisionLanguageModel(server.url, "eye", "Was it asked to {instruction}? {frames} frames.", **given)


def recorded(folder: Path, succeed: list[bool]) -> Run:
    rollouts = [made_rollout("p", "push-puck", index) for index in range(len(succeed))]
    return write_made_run(
        folder, [made_episode(r, good, image_size=32) for r, good in zip(rollouts, succeed, strict=True)]
    )


def images(request: dict[str, Any]) -> list[np.ndarray]:
    urls = [part["image_url"]["url"] for part in request["messages"][0]["content"] if part["type"] == "image_url"]
    assert all(url.startswith("data:image/png;base64,") for url in urls)
    coded = [np.frombuffer(base64.b64decode(url.partition(",")[2]), np.uint8) for url in urls]
    return [cv2.imdecode(each, cv2.IMREAD_COLOR)[..., ::-1] for each in coded]


def looking(request: dict[str, Any], number: int) -> tuple[int, str]:
    """Sees whether the goal is covered in the last picture."""
    return 200, NO if (images(request)[-1] == GOAL).all(-1).any() else YES


def test_it_judges_by_what_it_is_shown(server: Server, tmp_path: Path) -> None:
    run = recorded(tmp_path / "run", [True, False, False, True])
    server.answer = looking
    verdicts = judge_run(run, judge(server), "vlm", ["world"], {})
    assert {id_: verdict.success for id_, verdict in verdicts.items()} == {e.id: e.succeeded for e in run}
    (found,) = audits(read_outcomes(run), verdicts, ["world"])
    assert found["accuracy"]["estimate"] == 1.0


def test_it_is_asked_about_the_instruction_with_frames_from_the_first_to_the_last(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EYE_KEY", "sesame")
    run = recorded(tmp_path / "run", [True])
    (episode,) = run
    made = judge(server, image_size=64, temperature=0.5, request={"top_p": 0.9}, api_key_env="EYE_KEY")
    assert made(episode).votes == (3, 0, 0)
    request = server.requests[0]
    assert (request["model"], request["temperature"], request["top_p"]) == ("eye", 0.5, 0.9)
    assert request["messages"][0]["content"][0]["text"] == "Was it asked to push puck, please? 4 frames."
    shown = images(request)
    assert len(shown) == 4
    for step, image in zip((0, 10, 20, 30), shown, strict=True):
        np.testing.assert_array_equal(image, episode.observation["image_front"][step].repeat(2, 0).repeat(2, 1))
    assert len({each["seed"] for each in server.requests}) == 3  # votes differ
    assert {each["Authorization"] for each in server.headers} == {"Bearer sesame"}
    before = sorted(each["seed"] for each in server.requests)
    made(episode)
    assert sorted(each["seed"] for each in server.requests[3:]) == before  # and are the same when asked again


@pytest.mark.parametrize(
    ("text", "vote"),
    [
        (YES, True),
        (f"```json\n{NO}\n```", False),
        (f"  {YES}\n", True),
        ('{"success": false}', False),
        ("yes", None),
        ("true", None),
        ('{"success": "true"}', None),
        ('{"success": 1}', None),
        (f"I think so. {YES}", None),
        (f"{YES}\n{NO}", None),
        ("", None),
        ("[true]", None),
    ],
)
def test_an_answer_is_read_strictly(text: str, vote: bool | None) -> None:
    assert parsed(text)[0] is vote


@pytest.mark.parametrize(
    ("votes", "success", "probability"),
    [
        ([True, True, True, False, False], True, 0.6),
        ([False, None, False, False, True], False, 0.25),
        ([True, True, None, None, False], None, None),  # two of five are not more than half
        ([True, False], None, None),
        ([None, None, None], None, None),
        ([True], True, 1.0),
    ],
)
def test_more_than_half_of_all_votes_make_a_verdict(
    votes: list[bool | None], success: bool | None, probability: float | None
) -> None:
    verdict = counted([(vote, str(vote)) for vote in votes])
    assert (verdict.success, verdict.probability) == (success, probability)
    assert verdict.votes == (votes.count(True), votes.count(False), votes.count(None))


def test_what_it_does_not_answer_is_reported_and_no_failure(server: Server, tmp_path: Path) -> None:
    run = recorded(tmp_path / "run", [True, True])
    first, second = run.requested
    server.answer = lambda request, number: (200, YES if number < 3 else "hard to say")
    verdicts = judge_run(run, judge(server), "vlm", ["world"], {})
    assert (verdicts[first].success, verdicts[second].success) == (True, None)
    assert verdicts[second].votes == (0, 0, 3)
    assert "no plain answer: hard to say" in verdicts[second].reason
    scores = score(run, judge="vlm")
    assert (scores["overall"]["n"], scores["overall"]["rate"]) == (1, 1.0)
    assert [each["id"] for each in scores["not_counted"]] == [second]
    server.answer = looking
    assert judge_run(run, judge(server), "vlm", ["world"], {})[second].success is True
    assert len(server.requests) == 9  # what had a verdict was not asked again


def test_a_late_answer_is_waited_for_only_so_long(server: Server, tmp_path: Path) -> None:
    run = recorded(tmp_path / "run", [True])

    def late(request: dict[str, Any], number: int) -> tuple[int, str]:
        server.patience.wait(20)
        return 200, YES

    server.answer = late
    verdict = judge(server, timeout=0.2, votes=1)(next(iter(run)))
    assert verdict.success is None
    assert "no answer within 0.2 s" in verdict.reason


@pytest.mark.parametrize("trouble", [(500, b"overloaded"), (429, b"slower"), (200, b"{}"), (200, b"no json")])
def test_a_server_in_trouble_is_asked_again(server: Server, tmp_path: Path, trouble: tuple[int, bytes]) -> None:
    episode = next(iter(recorded(tmp_path / "run", [True])))
    server.answer = lambda request, number: trouble if number < 2 else (200, YES)
    assert judge(server, retries=1, votes=1)(episode).success is None
    server.requests.clear()
    assert judge(server, retries=2, votes=1)(episode).success is True
    assert len(server.requests) == 3


VLM = ["judge=vlm", "judge.model=eye", "judge.votes=1", "judge.retries=0", "judge.wait=0.01"]


def test_a_refusal_stops_at_once_in_one_line_and_leaves_nothing(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = recorded(tmp_path / "run", [True, True])
    server.answer = lambda request, number: (401, b'{"error": {"message": "no such key"}}')
    assert main(["judge", str(run.path), *VLM, f"judge.url={server.url}", "judge.retries=5"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "HTTP 401 (no such key)" in line
    assert len(server.requests) == 1
    assert not (run.path / "judges").exists()


def test_a_server_that_goes_away_stops_the_judging_which_goes_on_later(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = recorded(tmp_path / "run", [True, False])
    first, second = run.requested
    server.answer = lambda request, number: looking(request, number) if number == 0 else (404, b"gone")
    assert main(["judge", str(run.path), *VLM, f"judge.url={server.url}"]) == 2
    assert list(read_verdicts(run, "vlm")) == [first]
    server.answer = looking
    assert main(["judge", str(run.path), *VLM, f"judge.url={server.url}"]) == 0
    assert {id_: verdict.success for id_, verdict in read_verdicts(run, "vlm").items()} == {first: True, second: False}
    assert len(server.requests) == 3
    capsys.readouterr()
    assert main(["judge", str(run.path), *VLM, "judge.url=http://127.0.0.1:9", "name=other"]) == 2
    assert "no server answers at http://127.0.0.1:9" in capsys.readouterr().err


def test_no_key_is_recorded(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sesame")
    run = recorded(tmp_path / "run", [True])
    assert main(["judge", str(run.path), *VLM, f"judge.url={server.url}"]) == 0
    written = b"".join(path.read_bytes() for path in (run.path / "judges").rglob("*") if path.is_file())
    assert b"sesame" not in written
    assert server.headers[0]["Authorization"] == "Bearer sesame"


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"prompt": "did it work?"}, "{instruction}"),
        ({"url": "localhost:8000"}, "http://localhost:8000/v1"),
        ({"votes": 0}, "judge.votes"),
        ({"timeout": -1}, "judge.timeout"),
        ({"cameras": ["image_side"]}, "unknown camera"),
    ],
)
def test_settings_that_cannot_be_are_refused(
    server: Server, tmp_path: Path, settings: dict[str, Any], told: str
) -> None:
    episode = next(iter(recorded(tmp_path / "run", [True])))
    given = {"url": server.url, "model": "eye", "prompt": "{instruction}", "retries": 0} | settings
    with pytest.raises(ConfigError, match=told.replace("{", "\\{")):
        VisionLanguageModel(**given)(episode)


def test_an_episode_without_images_cannot_be_shown(server: Server) -> None:
    with pytest.raises(ConfigError, match="no images to look at"):
        judge(server)(made_episode(made_rollout("p", "reach", 0), True))


def test_other_questions_are_another_judge(server: Server) -> None:
    assert judge(server).fingerprint == judge(server, timeout=1.0).fingerprint
    for settings in ({"votes": 5}, {"frames": 2}, {"temperature": 0.0}, {"request": {"top_p": 0.1}}, {"seed": 1}):
        assert judge(server, **settings).fingerprint != judge(server).fingerprint


def test_images_that_were_recorded_as_videos_are_shown_too(server: Server, tmp_path: Path) -> None:
    rollout = made_rollout("p", "push-puck", 0)
    run = write_made_run(tmp_path / "run", [made_episode(rollout, True)])
    frames = made_episode(rollout, True, image_size=32).observation["image_front"]
    write_video(run.path / "videos" / rollout.id / "image_front.mp4", frames, 20)
    seen = with_films(run, run[rollout.id])
    assert {"image_front", "state"} <= set(seen.observation)
    assert seen.observation["image_front"].shape == frames.shape
    assert np.abs(seen.observation["image_front"].astype(float) - frames).mean() < 12  # films lose some detail
    np.testing.assert_array_equal(seen.window("observation/image_front", 3, 5), seen.observation["image_front"][3:5])
    verdicts = judge_run(run, judge(server), "vlm", ["world"], {})
    assert verdicts[rollout.id].votes == (3, 0, 0)
    assert len(images(server.requests[0])) == 4
