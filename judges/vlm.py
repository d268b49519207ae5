"""A vision-language model that is shown some frames of an episode and asked, several times, whether it succeeded."""

import base64
import json
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import cv2
import numpy as np

from judges.chat import Chat, Unanswered
from simeval.episode import Episode
from simeval.errors import ConfigError, unknown
from simeval.judge import Judge, Verdict
from simeval.noise import Key
from simeval.settings import names, whole
from simeval.types import content_hash
from simeval.video import episode_frames

_FENCED = re.compile(r"```(?:json)?\s*(.*?)\s*```", re.DOTALL)
_LONGEST = 200


class VisionLanguageModel(Judge):
    """Asks a model ``votes`` times whether an episode succeeded, and needs more than half of all votes for a verdict.

    ``prompt`` has ``{instruction}`` and, if it likes, ``{frames}``, their number: ``frames`` of the episode, from its
    first to its last at even steps, of the ``cameras`` named (default: all) side by side, at least ``image_size``
    [pixels] high. ``temperature`` and further fields of the ``request`` go to the server; ``seed`` keys the votes.
    See ``Chat`` for the rest. What is no plain answer, late or missing is an unanswered vote, never one against.
    """

    def __init__(
        self,
        url: str,
        model: str,
        prompt: str,
        votes: int = 5,
        frames: int = 8,
        cameras: str | Sequence[str] | None = None,
        image_size: int = 256,
        temperature: float = 0.7,
        max_tokens: int = 300,
        request: Mapping[str, Any] | None = None,
        seed: int = 0,
        timeout: float = 60.0,
        retries: int = 2,
        wait: float = 1.0,
        api_key_env: str | None = "OPENAI_API_KEY",
    ):
        if "{instruction}" not in str(prompt):
            raise ConfigError("judge.prompt says nothing of the instruction; write {instruction} where it belongs")
        self._chat = Chat(url, model, timeout, retries, wait, api_key_env)
        self._prompt = str(prompt)
        self._votes, self._frames = whole("judge.votes", votes), whole("judge.frames", frames)
        self._cameras = () if cameras is None else names("judge.cameras", cameras)
        self._image_size = whole("judge.image_size", image_size)
        self._seed = whole("judge.seed", seed, 0)
        self._request = {"temperature": temperature, "max_tokens": whole("judge.max_tokens", max_tokens)}
        self._request |= dict(request or {})
        asked = [self._prompt, self._votes, self._frames, list(self._cameras), self._image_size, self._seed]
        self._fingerprint = f"vlm {model} {content_hash([*asked, self._request])}"
        self._pool = ThreadPoolExecutor(self._votes)

    @property
    def fingerprint(self) -> str:
        """The model's name, and all that it is shown and asked."""
        return self._fingerprint

    def __call__(self, episode: Episode) -> Verdict:
        """See ``Judge.__call__``; ``ChatError`` where nobody can be asked."""
        messages = [{"role": "user", "content": self._question(episode)}]
        keys = [Key(self._seed).integer("vote", episode.id, vote) >> 32 for vote in range(self._votes)]
        return counted(list(self._pool.map(lambda key: self._vote(messages, key), keys)))

    def close(self) -> None:
        """See ``Judge.close``."""
        self._pool.shutdown(cancel_futures=True)

    def _vote(self, messages: Sequence[Mapping[str, Any]], seed: int) -> tuple[bool | None, str]:
        try:
            return parsed(self._chat.ask(messages, **self._request, seed=seed))
        except Unanswered as error:
            return None, str(error)

    def _question(self, episode: Episode) -> list[dict[str, Any]]:
        """The prompt and the frames, each with its step."""
        recorded = [key for key in episode.observation if key.startswith("image_")]
        for camera in self._cameras:
            if camera not in recorded:
                raise unknown("camera in judge.cameras of what was recorded", camera, recorded)
        shown = episode_frames(episode, self._cameras)
        if shown is None:
            raise ConfigError(
                f"episode {episode.id} has no images to look at: record some with world.cameras=[…], or judge by "
                "judge=classifier"
            )
        steps = np.unique(np.linspace(0, len(shown) - 1, self._frames).round().astype(int)).tolist()
        steps = [len(shown) - 1] if self._frames == 1 else steps
        text = self._prompt.replace("{instruction}", episode.rollout.start.instruction)
        content: list[dict[str, Any]] = [{"type": "text", "text": text.replace("{frames}", str(len(steps)))}]
        for step in steps:
            content.append({"type": "text", "text": f"Step {step} of {len(shown) - 1}:"})
            url = f"data:image/png;base64,{_png(shown[step], self._image_size)}"
            content.append({"type": "image_url", "image_url": {"url": url}})
        return content


def parsed(text: str) -> tuple[bool | None, str]:
    """A vote and its reason. An answer is a JSON object whose ``success`` is true or false, in a code fence or bare;
    anything else is none."""
    fenced = _FENCED.fullmatch(text.strip())
    try:
        answer = json.loads(fenced.group(1) if fenced else text)
    except ValueError:
        answer = None
    if not isinstance(answer, dict) or not isinstance(answer.get("success"), bool):
        return None, f"no plain answer: {_short(text)}"
    return answer["success"], _short(str(answer.get("reason", "")))


def counted(votes: Sequence[tuple[bool | None, str]]) -> Verdict:
    """The verdict of some votes with their reasons: what more than half of all say, answered or not."""
    said = [vote for vote, _ in votes]
    count = (said.count(True), said.count(False), said.count(None))
    winner = next((side for side in (True, False) if 2 * said.count(side) > len(said)), None)
    answered = count[0] + count[1]
    tally = f"{count[0]} for, {count[1]} against, {count[2]} unanswered of {len(said)} votes"
    reason = next((why for vote, why in votes if vote is winner and why), "")
    return Verdict(
        winner,
        count[0] / answered if answered and winner is not None else None,
        count,
        f"{tally}: {reason}" if reason else tally,
    )


def _png(image: np.ndarray, least: int) -> str:
    zoom = -(-least // image.shape[0])
    larger = image.repeat(zoom, axis=0).repeat(zoom, axis=1)
    done, data = cv2.imencode(".png", larger[..., ::-1])
    if not done:
        raise ValueError(f"an image of shape {image.shape} cannot be encoded")
    return base64.b64encode(data.tobytes()).decode()


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]}…"
