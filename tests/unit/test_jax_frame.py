"""The CUDA handler on call frames as XLA lays them out, with a launcher that only notes what it is given."""

from __future__ import annotations

import contextlib
import ctypes
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("jax", reason="needs jax")

from peakgemm.calls import launch
from peakgemm.calls.request import Request
from peakgemm.errors import OutOfMemory
from peakgemm.integrations import jax_abi as abi
from peakgemm.integrations import jax_handler, jax_linalg
from peakgemm.linalg.call import Operation

CALL = Request((8, 5), (5, 4), (1, 4), (8, 4), 1.5, 0.5)
TEXT = jax_handler.to_text(CALL).encode()
STREAM, A, B, C, OUT, ROOM = 0x7000, 0x10000, 0x20000, 0x30000, 0x40000, 0x50000


class Frame:
    """XLA_FFI_CallFrame with what it points at, by the header's offsets; kept alive by itself."""

    def __init__(self, arguments: tuple[int, ...], room_floats: int = 16, stage: int = abi.EXECUTE, text: bytes = TEXT,
                 results: tuple[int, ...] = (OUT,)) -> None:
        self._kept: list[Any] = []
        self.errors: list[tuple[int, bytes]] = []
        buffers = [self._buffer(x, (8, 5)) for x in arguments]
        rets = [*(self._buffer(x, (8, 4)) for x in results), self._buffer(ROOM, (room_floats,))]
        string = ctypes.create_string_buffer(text, len(text))
        span = self._words(ctypes.addressof(string), len(text))
        self._kept.append(string)
        self.words = self._words(
            176, 0, self._api(), 0xC0DE, stage,
            40, 0, len(buffers), 0, self._pointers(buffers), 40, 0, len(rets), 0, self._pointers(rets),
            48, 0, 1, 0, 0, self._pointers([span]), 0)

    def run(self, on_cuda: Any = jax_handler._on_cuda) -> int:
        """What the CUDA handler returns for this frame: 0, or an error object's address."""
        return jax_handler.handler(on_cuda)(ctypes.addressof(self.words)) or 0

    def _words(self, *values: int) -> Any:
        made = (ctypes.c_uint64 * len(values))(*values)
        self._kept.append(made)
        return made

    def _pointers(self, structs: list[Any]) -> int:
        return ctypes.addressof(self._words(*map(ctypes.addressof, structs)))

    def _buffer(self, data: int, dims: tuple[int, ...]) -> Any:
        return self._words(48, 0, 11, data, len(dims), ctypes.addressof(self._words(*dims)))

    def _api(self) -> int:
        def answer(value: int) -> Any:
            def call(arguments: int) -> int:
                asked = (ctypes.c_uint64 * 4).from_address(arguments)
                assert asked[0] == 32 and asked[2] == 0xC0DE
                asked[3] = value
                return 0
            return prototype(call)

        def create(arguments: int) -> int:
            given = (ctypes.c_uint64 * 4).from_address(arguments)
            self.errors.append((given[3] & 0xFFFFFFFF, ctypes.string_at(given[2])))
            return 0xE0

        prototype = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
        functions = {6: prototype(create), 10: answer(STREAM), 23: answer(1)}  # by words of the interface
        self._kept.append(functions)
        return ctypes.addressof(self._words(*(
            ctypes.cast(functions[i], ctypes.c_void_p).value or 0 if i in functions else 0 for i in range(24))))


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The launches of a call that wants 64 bytes of workspace, each with the device and alignment of its kernel."""
    seen: list[tuple[Any, ...]] = []
    for device in (0, 1):
        for alignment in (4, 16):
            bound = SimpleNamespace(workspace_bytes=64,
                                    launch=lambda *x, of=(device, alignment): seen.append((of, *x)))
            # operands swapped on the first device alone
            ready = SimpleNamespace(**vars(bound), swapped=device == 0, bound=bound)
            monkeypatch.setitem(launch.calls, (TEXT, device, alignment), ready)
    monkeypatch.setattr(jax_handler.device, "count", lambda: 1)
    monkeypatch.setattr(jax_handler.device, "activated", lambda index: contextlib.nullcontext())
    return seen


@pytest.mark.parametrize(("arguments", "devices", "stage", "launches"), [
    ((A, B, C), 1, abi.EXECUTE, [((0, 16), B, A, OUT, C, ROOM, STREAM)]),
    ((A + 4, B, C), 1, abi.EXECUTE, [((0, 4), B, A + 4, OUT, C, ROOM, STREAM)]),
    ((A, B), 1, abi.EXECUTE, [((0, 16), B, A, OUT, OUT, ROOM, STREAM)]),
    ((A, B, C), 2, abi.EXECUTE, [((1, 16), A, B, OUT, C, ROOM, STREAM)]),  # the one that XLA names
    ((A, B), 1, 1, []),  # to prepare: nothing to do
])
def test_what_a_frame_says_is_launched(launched: Any, monkeypatch: pytest.MonkeyPatch, arguments: tuple[int, ...],
                                       devices: int, stage: int, launches: Any) -> None:
    monkeypatch.setattr(jax_handler.device, "count", lambda: devices)
    frame = Frame(arguments, stage=stage)
    assert not frame.run() and not frame.errors and launched == launches


def test_too_small_a_workspace_is_an_error_of_xla(launched: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def without(error: Exception, *_: Any) -> None:
        raise OutOfMemory("does not fit") from error

    monkeypatch.setattr(jax_handler, "without_workspace", without)
    monkeypatch.setattr(jax_handler.device, "require", lambda index: None)
    frame = Frame((A, B, C), 15)
    assert frame.run() == 0xE0
    assert frame.errors == [(8, b"peakgemm: OutOfMemory: does not fit")] and not launched


@pytest.mark.parametrize(("room", "text", "code", "message"), [
    (16, b"known", 0, b""), (15, b"known", 8, b"XLA gave 60 bytes of workspace, 64 are wanted"),
    (16, b"('syrk', 'ieee')", 3, b"asks for ('syrk'), whose steps were recorded in another process")])
def test_a_program_of_linear_algebra(monkeypatch: pytest.MonkeyPatch, room: int, text: bytes, code: int,
                                     message: bytes) -> None:
    """Its steps are launched with all addresses in their order, after info has been cleared; or XLA's error."""
    seen: list[tuple[Any, ...]] = []
    operation = Operation("cholesky", {"a": (8, 5, 5)}, (8, 5, 5), lambda *_: None, None,
                          also={"info": ((8,), "int32"), "r": ((8, 1, 1), "float32")})
    bound = SimpleNamespace(workspace_bytes=64, run=lambda *x: seen.append(("run", *x)))
    monkeypatch.setitem(jax_linalg._operations, "known", operation)
    monkeypatch.setitem(jax_linalg.calls, (jax_linalg.TARGET, "known", 0, (0, 0, 0, 4)), bound)
    monkeypatch.setattr(jax_linalg, "memory", SimpleNamespace(clear=lambda *x: seen.append(("clear", *x))))
    monkeypatch.setattr(jax_handler.device, "count", lambda: 1)
    monkeypatch.setattr(jax_handler.device, "activated", lambda index: contextlib.nullcontext())
    frame = Frame((A,), room, text=text, results=(OUT, B, C + 4))
    assert bool(frame.run(jax_linalg._on_cuda)) == bool(code)
    if code:
        ((given, said),) = frame.errors
        assert given == code and message in said and not seen
    else:
        assert seen == [("clear", B, 32, STREAM), ("run", ROOM, [A, OUT, B, C + 4], STREAM)]


def test_metadata_says_the_version_and_that_it_may_be_captured() -> None:
    metadata = (ctypes.c_uint64 * 6)(48, 24)
    extension = (ctypes.c_uint64 * 4)(24, 1, 0, ctypes.addressof(metadata))
    frame = Frame(())
    frame.words[1] = ctypes.addressof(extension)
    assert not frame.run()
    major, minor = abi.interface().version
    assert metadata[3] == major | minor << 32 and metadata[4] & 0xFFFFFFFF == abi.COMMAND_BUFFER_COMPATIBLE


def test_a_text_is_the_same_call_in_another_process() -> None:
    assert jax_handler.from_text(TEXT) == CALL
