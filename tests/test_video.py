"""Videos decode to what was written, and never replace each other."""

from pathlib import Path

import imageio_ffmpeg
import numpy as np
import pytest

from simeval.errors import TraceError
from simeval.testing.runs import made_episode, made_rollout
from simeval.video import captioned, episode_frames, write_video


def _moving_square(count: int, height: int, width: int) -> np.ndarray:
    frames = np.full((count, height, width, 3), 230, dtype=np.uint8)
    for index in range(count):
        frames[index, 8:40, index * 4 : index * 4 + 32] = (200, 40, 40)
    return frames


def _decoded(path: Path) -> tuple[dict[str, object], np.ndarray]:
    reader = imageio_ffmpeg.read_frames(str(path))
    meta = next(reader)
    width, height = meta["size"]
    return meta, np.stack([np.frombuffer(raw, np.uint8).reshape(height, width, 3) for raw in reader])


@pytest.mark.parametrize(("height", "width"), [(64, 96), (65, 97)])
def test_a_video_decodes_to_its_frames(tmp_path: Path, height: int, width: int) -> None:
    frames = _moving_square(12, height, width)
    meta, decoded = _decoded(write_video(tmp_path / "videos" / "a.mp4", frames, fps=10))
    assert (meta["codec"], meta["fps"], str(meta["pix_fmt"])[:7]) == ("h264", 10, "yuv420p")
    assert decoded.shape == (12, height + height % 2, width + width % 2, 3)
    assert np.abs(decoded[:, :height, :width].astype(int) - frames).mean() < 6
    assert list((tmp_path / "videos").iterdir()) == [tmp_path / "videos" / "a.mp4"]


def test_a_video_is_never_overwritten(tmp_path: Path) -> None:
    path = write_video(tmp_path / "a.mp4", _moving_square(3, 64, 64), fps=10)
    before = path.read_bytes()
    with pytest.raises(TraceError, match="never overwritten"):
        write_video(path, _moving_square(5, 64, 64), fps=10)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "frames", [np.zeros((0, 8, 8, 3), np.uint8), np.zeros((2, 8, 8, 3)), np.zeros((8, 8, 3), np.uint8)]
)
def test_what_is_no_film_is_refused(tmp_path: Path, frames: np.ndarray) -> None:
    with pytest.raises(ValueError, match=r"uint8 frames \[T, H, W, 3\]"):
        write_video(tmp_path / "a.mp4", frames, fps=10)
    assert not list(tmp_path.iterdir())


def test_recorded_images_are_the_film_of_an_episode() -> None:
    episode = made_episode(made_rollout("p", "t", 0), True, length=9, image_size=32)
    frames = episode_frames(episode)
    assert frames is not None
    assert np.array_equal(frames, episode.observation["image_front"])
    assert episode_frames(made_episode(made_rollout("p", "t", 0), True)) is None


def test_a_caption_stands_below_the_picture_and_its_lamp_follows_success() -> None:
    frames = _moving_square(4, 64, 240)
    success = np.array([False, False, True, False])
    shown = captioned(frames, "expert on push", "push the red cube into the green zone, and further than fits", success)
    assert np.array_equal(shown[:, :64], frames)
    strips = shown[:, 64:]
    assert np.array_equal(strips[0], strips[1])
    assert np.array_equal(strips[0], strips[3])
    assert not np.array_equal(strips[0], strips[2])


def test_small_pictures_are_enlarged_so_that_the_caption_can_be_read() -> None:
    frames = _moving_square(2, 48, 96)
    shown = captioned(frames, "expert", "push")
    assert shown.shape[2] == 288
    assert np.array_equal(shown[:, : 3 * 48 : 3, ::3], frames)
