"""The CUDA handler on call frames as XLA lays them out, with a launcher that only notes what it is given."""

from __future__ import annotations

import contextlib
import ctypes
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("jax", reason="needs jax")

from peakgemm.errors import OutOfMemory
from peakgemm.integrations import jax_abi as abi
from peakgemm.integrations import jax_handler
from peakgemm.integrations.jax_handler import Call, Ready

CALL = Call((8, 5), (5, 4), (1, 4), (8, 4), 1.5, 0.5, False, False, "ieee")
STREAM, A, B, C, OUT, ROOM = 0x7000, 0x10000, 0x20000, 0x30000, 0x40000, 0x50000


class Frame:
    """XLA_FFI_CallFrame with what it points at; kept alive by itself."""

    def __init__(self, text: bytes, arguments: tuple[int, ...], room_floats: int, stage: int = abi.EXECUTE) -> None:
        self._kept: list[Any] = []
        self.errors: list[tuple[int, bytes]] = []
        buffers = [self._buffer(x, (8, 5)) for x in arguments]
        results = [self._buffer(OUT, (8, 4)), self._buffer(ROOM, (room_floats,))]
        string = ctypes.create_string_buffer(text, len(text))
        span = self._words(ctypes.addressof(string), len(text))
        self._kept.append(string)
        self.words = self._words(
            176, 0, self._api(), 0xC0DE, stage,
            40, 0, len(buffers), 0, self._pointers(buffers), 40, 0, 2, 0, self._pointers(results),
            48, 0, 1, 0, 0, self._pointers([span]), 0)

    @property
    def address(self) -> int:
        return ctypes.addressof(self.words)

    def _words(self, *values: int) -> Any:
        made = abi.struct(values)
        self._kept.append(made)
        return made

    def _pointers(self, structs: list[Any]) -> int:
        return ctypes.addressof(self._words(*map(ctypes.addressof, structs)))

    def _buffer(self, data: int, dims: tuple[int, ...]) -> Any:
        return self._words(48, 0, 11, data, len(dims), ctypes.addressof(self._words(*dims)))

    def _api(self) -> int:
        def stream(arguments: int) -> int:
            asked = abi.words(arguments, 4)
            assert asked[0] == 32 and asked[2] == 0xC0DE
            asked[3] = STREAM
            return 0

        def create(arguments: int) -> int:
            given = abi.words(arguments, 4)
            self.errors.append((given[3] & 0xFFFFFFFF, ctypes.string_at(given[2])))
            return 0xE0

        prototype = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
        functions = [prototype(create), prototype(stream)]
        self._kept += functions
        first, second = (ctypes.cast(f, ctypes.c_void_p).value or 0 for f in functions)
        return ctypes.addressof(self._words(200, 0, 24, 0, 0, 0, first, 0, 0, 0, second))


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A ready call that wants 64 bytes of workspace; gives the launches and what was asked of other alignments."""
    seen: list[tuple[int, ...]] = []
    bound = SimpleNamespace(workspace_bytes=64)
    ready = Ready(lambda *x: seen.append(x), True, bound)
    asked: list[int] = []

    def prepared(text: bytes, index: int, alignment: int) -> Ready:
        asked.append(alignment)
        return ready

    monkeypatch.setattr(jax_handler, "_prepared", prepared)
    monkeypatch.setattr(jax_handler, "_calls", {(CALL.text().encode(), 0, 16): ready})
    monkeypatch.setattr(jax_handler.device, "count", lambda: 1)
    monkeypatch.setattr(jax_handler.device, "activated", lambda index: contextlib.nullcontext())
    return SimpleNamespace(seen=seen, asked=asked, bound=bound)


def test_what_a_frame_says_is_launched(launched: Any) -> None:
    run = jax_handler.handler(jax_handler._on_cuda)
    frame = Frame(CALL.text().encode(), (A, B, C), 16)
    assert not run(frame.address) and not frame.errors
    assert launched.seen == [(B, A, OUT, C, ROOM, STREAM)] and launched.asked == []  # swapped
    assert not run(Frame(CALL.text().encode(), (A + 4, B, C), 16).address)
    assert launched.asked == [4] and launched.seen[-1] == (B, A + 4, OUT, C, ROOM, STREAM)
    assert not run(Frame(CALL.text().encode(), (A, B), 16).address)
    assert launched.seen[-1] == (B, A, OUT, OUT, ROOM, STREAM)
    assert not run(Frame(CALL.text().encode(), (A, B), 16, stage=1).address)  # prepare: nothing to do
    assert len(launched.seen) == 3


def test_too_small_a_workspace_is_an_error_of_xla(launched: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def without(error: Exception, *_: Any) -> None:
        raise OutOfMemory("does not fit") from error

    monkeypatch.setattr(jax_handler, "without_workspace", without)
    monkeypatch.setattr(jax_handler.device, "require", lambda index: None)
    frame = Frame(CALL.text().encode(), (A, B, C), 15)
    assert jax_handler.handler(jax_handler._on_cuda)(frame.address) == 0xE0
    assert frame.errors == [(abi.RESOURCE_EXHAUSTED, b"peakgemm: OutOfMemory: does not fit")] and not launched.seen


def test_metadata_says_the_version_and_that_it_may_be_captured() -> None:
    metadata = abi.struct((48, 24, 0, 0, 0, 0))
    extension = abi.struct((24, abi.METADATA_EXTENSION, 0, ctypes.addressof(metadata)))
    frame = Frame(b"", (), 1)
    frame.words[1] = ctypes.addressof(extension)
    assert not jax_handler.handler(jax_handler._on_cuda)(frame.address)
    major, minor = abi.header().version
    assert metadata[3] == major | minor << 32 and metadata[4] & 0xFFFFFFFF == abi.COMMAND_BUFFER_COMPATIBLE


def test_a_text_is_the_same_call_in_another_process() -> None:
    assert Call.parse(CALL.text().encode()) == CALL
