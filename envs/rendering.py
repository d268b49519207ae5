"""Offscreen pictures of a MuJoCo model, in the one OpenGL context that the renderers of a thread share."""

import atexit
import os
import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import mujoco
import numpy as np

from simeval.errors import ConfigError, UnsupportedError, unknown
from simeval.noise import StepKey
from simeval.simulator import SimulatorWorld
from simeval.types import Start, TimeStep

RenderProfile = Literal["fast", "faithful"]
"""``faithful`` draws the model as its authors set it up; ``fast`` leaves out shadows, reflections and multisampling."""

PROFILES: tuple[RenderProfile, ...] = ("fast", "faithful")
MAX_GEOMS = 10_000


def check_profile(profile: str) -> RenderProfile:
    """``profile`` if it exists; else a ``ConfigError`` with the nearest names."""
    for known in PROFILES:
        if profile == known:
            return known
    raise unknown("render_profile", profile, PROFILES)


class Renderer:
    """Draws one ``MjModel`` offscreen; the model's physics and its own settings are left as they are.

    ``size`` is ``side`` or ``(height, width)`` [pixels], free of the model's own framebuffer size. Meshes and textures
    are uploaded here, so later changes to them are not seen; positions, colours, lights and cameras are read at every
    :meth:`render`. Use it in the thread that made it. Raises ``UnsupportedError`` where there is no OpenGL.
    """

    def __init__(self, model: mujoco.MjModel, size: int | tuple[int, int], profile: str = "fast"):
        self.height, self.width = (size, size) if isinstance(size, int) else size
        if min(self.height, self.width) < 1:
            raise ConfigError(f"an image size is at least 1 pixel; received {self.height} x {self.width}")
        fast = check_profile(profile) == "fast"
        self._model = model
        self._cameras = [model.camera(index).name for index in range(model.ncam)]
        self._graphics = _Graphics.of_this_thread()
        with _framebuffer(model, self.height, self.width, fast):
            self._context = self._graphics.new_context(model)
        self._finalizer = weakref.finalize(self, self._graphics.discard, self._context)
        self._finalizer.atexit = False
        self._option = mujoco.MjvOption()
        self._scene = mujoco.MjvScene(model, maxgeom=MAX_GEOMS)
        if fast:
            self._scene.flags[mujoco.mjtRndFlag.mjRND_SHADOW] = False
            self._scene.flags[mujoco.mjtRndFlag.mjRND_REFLECTION] = False
        self._rect = mujoco.MjrRect(0, 0, self.width, self.height)

    def render(
        self, data: mujoco.MjData, camera: str | int | mujoco.MjvCamera, model: mujoco.MjModel | None = None
    ) -> np.ndarray:
        """A fresh upright picture, uint8 ``[height, width, 3]``; ``camera`` is a name, an id or a camera of your own.

        Body poses are those that ``data`` holds; nothing is computed anew. ``model``, where given, is a copy of the
        renderer's model whose colours, lights and fixed positions are drawn instead, so that one renderer serves many
        copies. An unknown camera raises ``ConfigError``.
        """
        if not self._finalizer.alive:
            raise RuntimeError("this renderer is closed; make a new one")
        view = camera if isinstance(camera, mujoco.MjvCamera) else self._fixed(camera)
        self._graphics.make_current()
        # The framebuffer in use is a setting of the shared OpenGL context, not of this renderer's.
        mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN, self._context)
        mujoco.mjv_updateScene(
            self._model if model is None else model,
            data,
            self._option,
            None,
            view,
            mujoco.mjtCatBit.mjCAT_ALL,
            self._scene,
        )
        mujoco.mjr_render(self._rect, self._scene, self._context)
        bottom_up = np.empty((self.height, self.width, 3), dtype=np.uint8)
        mujoco.mjr_readPixels(bottom_up, None, self._rect, self._context)
        return bottom_up[::-1].copy()

    def close(self) -> None:
        """Free what the renderer holds on the graphics device; closing twice is harmless."""
        self._finalizer()

    def _fixed(self, camera: str | int) -> mujoco.MjvCamera:
        if isinstance(camera, str):
            if camera not in self._cameras:
                raise unknown("camera", camera, self._cameras)
            camera = self._cameras.index(camera)
        if not 0 <= camera < len(self._cameras):
            raise unknown("camera id", camera, range(len(self._cameras)))
        view = mujoco.MjvCamera()
        view.type = mujoco.mjtCamera.mjCAMERA_FIXED
        view.fixedcamid = camera
        return view


class RendererPool:
    """Renderers for many copies of several models, made when first needed: one for each model name and size.

    At most ``capacity`` exist at once; the least recently used one is closed first.
    """

    def __init__(self, profile: str, capacity: int):
        self._profile = check_profile(profile)
        self._capacity = capacity
        self._works = False
        self._renderers: dict[tuple[str, int], Renderer] = {}

    def render(
        self, name: str, model: mujoco.MjModel, data: mujoco.MjData, camera: str | mujoco.MjvCamera, size: int
    ) -> np.ndarray:
        """A picture, uint8 ``[size, size, 3]``, of a copy of the model known as ``name``; see ``Renderer.render``."""
        renderer = self._renderers.pop((name, size), None)
        if renderer is None:
            while len(self._renderers) >= self._capacity:
                self._renderers.pop(next(iter(self._renderers))).close()
            renderer = Renderer(model, size, self._profile)
        self._renderers[name, size] = renderer
        return renderer.render(data, camera, model)

    def require(self) -> None:
        """Raise ``UnsupportedError`` unless pictures can be drawn; found out once."""
        if not self._works:
            Renderer(mujoco.MjModel.from_xml_string("<mujoco/>"), 1, self._profile).close()
            self._works = True

    def close(self) -> None:
        """Close every renderer; the pool makes new ones if it is used again."""
        while self._renderers:
            self._renderers.popitem()[1].close()


class RenderedWorld(SimulatorWorld):
    """A World of simulators that are drawn by one pool of renderers: the first to know when there is no OpenGL.

    A subclass sets ``renderers``, and the ``cameras`` whose pictures are observations, before its first reset.
    """

    renderers: RendererPool
    cameras: tuple[str, ...]

    def reset(self, slots: Sequence[int], starts: Sequence[Start], keys: Sequence[StepKey]) -> TimeStep:
        """See ``World.reset``."""
        if self.cameras:  # otherwise each episode would fail by itself
            self.renderers.require()
        return super().reset(slots, starts, keys)

    def close(self) -> None:
        """See ``World.close``."""
        super().close()
        self.renderers.close()


@contextmanager
def _framebuffer(model: mujoco.MjModel, height: int, width: int, fast: bool) -> Iterator[None]:
    quality, size = model.vis.quality, model.vis.global_
    before = size.offheight, size.offwidth, quality.offsamples, quality.shadowsize
    size.offheight, size.offwidth = height, width
    if fast:
        quality.offsamples = quality.shadowsize = 0
    try:
        yield
    finally:
        size.offheight, size.offwidth, quality.offsamples, quality.shadowsize = before


class _Graphics:
    """The OpenGL context of one thread, with the renderers' contexts in it that wait to be freed.

    A garbage collection in another thread may discard a renderer; its memory is then freed when the owner draws next.
    """

    _local = threading.local()

    def __init__(self) -> None:
        try:
            self._gl = _new_gl_context()
        except Exception as error:
            raise _no_opengl(error) from error
        self._failure: UnsupportedError | None = None
        self._owner = threading.get_ident()
        self._discarded: list[mujoco.MjrContext] = []
        self._alive: set[mujoco.MjrContext] = set()
        # Registered after MuJoCo's own exit hook, hence run before it takes the display away.
        atexit.register(self._close)

    @classmethod
    def of_this_thread(cls) -> "_Graphics":
        existing = getattr(cls._local, "graphics", None)
        if existing is None:
            existing = cls._local.graphics = cls()
        return existing

    def make_current(self) -> None:
        self._gl.make_current()
        while self._discarded:
            self._discarded.pop().free()

    def new_context(self, model: mujoco.MjModel) -> mujoco.MjrContext:
        if self._failure is not None:  # MuJoCo aborts the process if asked again after a failure
            raise self._failure
        self.make_current()
        try:
            context = mujoco.MjrContext(model, mujoco.mjtFontScale.mjFONTSCALE_100)
        except mujoco.FatalError as error:
            self._failure = _no_opengl(error)
            raise self._failure from error
        self._alive.add(context)
        return context

    def discard(self, context: mujoco.MjrContext) -> None:
        self._alive.remove(context)
        self._discarded.append(context)
        if threading.get_ident() == self._owner:
            self.make_current()

    def _close(self) -> None:
        if threading.get_ident() == self._owner:
            self._discarded.extend(self._alive)
            self._alive.clear()
            self.make_current()
        self._gl.free()


def _new_gl_context() -> Any:
    # MuJoCo picked its own backend when it was first imported, maybe before this package could ask for EGL.
    if os.environ.get("MUJOCO_GL", "").lower() == "egl":
        from mujoco.egl import GLContext

        return GLContext(1, 1)
    return mujoco.GLContext(1, 1)


def _no_opengl(error: Exception) -> UnsupportedError:
    return UnsupportedError(
        f"cannot draw images, no working OpenGL ({type(error).__name__}: {error}); "
        "run: apt-get install -y libegl1 libgl1-mesa-dri, and set MUJOCO_GL=egl"
    )
