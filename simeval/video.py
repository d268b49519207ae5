"""Episodes as H.264 video that every browser plays."""

import contextlib
import errno
import os
from pathlib import Path

import numpy as np

from simeval.episode import Episode
from simeval.errors import MissingPackageError, TraceError
from simeval.folder import refused

_KEYFRAME_SECONDS = 1.0
_HEAD = 256
"""A completed file names its tracks within so many bytes, as they are moved to its beginning last of all."""
_CAPTION_WIDTH = 240
"""Smaller frames are enlarged by a whole factor to at least this width [px], so that a caption can be read."""
_STRIP_INK, _STRIP_PAPER = (235, 235, 235), (24, 26, 30)
_GOOD, _WAITING = (70, 190, 110), (110, 114, 122)


def write_video(path: str | Path, frames: np.ndarray, fps: float) -> Path:
    """Write ``frames`` (uint8 RGB ``[T, H, W, 3]``, T ≥ 1) as an MP4 (H.264, yuv420p, seekable from its first byte).

    Odd heights and widths get a repeated last row or column, which yuv420p needs. Raises ``TraceError`` where ``path``
    exists, as a video is never overwritten, and where the disk refuses.
    """
    path = Path(path)
    frames = np.asarray(frames)
    if frames.dtype != np.uint8 or frames.ndim != 4 or frames.shape[-1] != 3 or len(frames) == 0:
        raise ValueError(f"a video needs uint8 frames [T, H, W, 3]; received {frames.dtype} {frames.shape}")
    if not fps > 0:
        raise ValueError(f"a video needs a positive number of frames per second; received {fps}")
    if path.exists():
        raise TraceError(f"video {path} exists; videos are never overwritten: remove it first or choose another name")
    frames = np.pad(frames, ((0, 0), (0, frames.shape[1] % 2), (0, frames.shape[2] % 2), (0, 0)), mode="edge")
    temporary = path.with_name(f".{path.stem}.{os.getpid()}.tmp.mp4")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _encode(temporary, frames, fps)
        os.link(temporary, path)
    except FileExistsError:
        raise TraceError(f"video {path} was just written by another process; it is left as it is") from None
    except OSError as error:
        raise refused(path, error) from None
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()
    return path


def _encode(path: Path, frames: np.ndarray, fps: float) -> None:
    try:
        import imageio_ffmpeg
    except ImportError:
        raise MissingPackageError("imageio-ffmpeg, which writes videos,", "imageio-ffmpeg") from None
    keyframes = str(max(1, round(_KEYFRAME_SECONDS * fps)))
    writer = imageio_ffmpeg.write_frames(
        str(path),
        (frames.shape[2], frames.shape[1]),
        fps=fps,
        codec="libx264",
        pix_fmt_out="yuv420p",
        macro_block_size=2,
        output_params=["-crf", "23", "-preset", "veryfast", "-g", keyframes, "-movflags", "+faststart"],
    )
    writer.send(None)
    try:
        for frame in frames:
            writer.send(np.ascontiguousarray(frame))
    finally:
        writer.close()
    with open(path, "rb") as file:
        if b"moov" not in file.read(_HEAD):
            raise OSError(errno.EIO, "the video's file was not completed")


def episode_frames(episode: Episode, cameras: tuple[str, ...] = ()) -> np.ndarray | None:
    """The images recorded in an episode, uint8 ``[T + 1, H, W, 3]``, or none where it has none.

    ``cameras`` names observation keys (``image_…``), all by default; several stand side by side, padded to one height.
    """
    keys = cameras or tuple(key for key in episode.observation if key.startswith("image_"))
    views = [episode.observation[key] for key in keys]
    views = [view for view in views if view.dtype == np.uint8 and view.ndim == 4 and view.shape[-1] == 3]
    if not views:
        return None
    height = max(view.shape[1] for view in views)
    return np.concatenate(
        [np.pad(view, ((0, 0), (0, height - view.shape[1]), (0, 0), (0, 0))) for view in views], axis=2
    )


def captioned(frames: np.ndarray, title: str, text: str, success: np.ndarray | None = None) -> np.ndarray:
    """``frames`` [T, H, W, 3] with a strip below: ``title`` (policy, task), ``text`` (instruction), a success lamp.

    ``success`` [T] (bool) lights the lamp frame by frame. Text that does not fit is cut with an ellipsis;
    frames too narrow for text are enlarged.
    """
    zoom = -(-_CAPTION_WIDTH // frames.shape[2])
    frames = frames.repeat(zoom, axis=1).repeat(zoom, axis=2)
    width = frames.shape[2]
    scale = max(0.38, width / 900)
    line = round(34 * scale) + 4
    strip = np.full((2 * line + 6, width, 3), _STRIP_PAPER, dtype=np.uint8)
    room = width - 12 - (line if success is not None else 0)
    _write(strip, title, (6, line - 4), scale, room)
    _write(strip, text, (6, 2 * line - 2), scale, room)
    out = np.empty((len(frames), frames.shape[1] + len(strip), width, 3), dtype=np.uint8)
    out[:, : frames.shape[1]] = frames
    out[:, frames.shape[1] :] = strip
    if success is not None:
        _lamps(out, success, (width - line // 2 - 3, frames.shape[1] + line // 2 + 3), line // 3)
    return out


def _write(image: np.ndarray, text: str, at: tuple[int, int], scale: float, room: int) -> None:
    import cv2

    font = cv2.FONT_HERSHEY_SIMPLEX
    text = text.encode("ascii", "replace").decode()
    cut = text
    while cut and cv2.getTextSize(cut, font, scale, 1)[0][0] > room:
        cut = cut[:-1]
    if cut != text:
        cut = cut[:-3] + "..."
    cv2.putText(image, cut, at, font, scale, _STRIP_INK, 1, cv2.LINE_AA)


def _lamps(frames: np.ndarray, success: np.ndarray, at: tuple[int, int], radius: int) -> None:
    import cv2

    for frame, lit in zip(frames, success, strict=True):
        cv2.circle(frame, at, radius, _GOOD if lit else _WAITING, -1, cv2.LINE_AA)
