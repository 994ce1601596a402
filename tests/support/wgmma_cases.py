"""One wgmma on operands laid out in shared memory by rules written down here, apart from the simulator's."""

import numpy as np

from peakgemm.tools.simulator import run
from simulator_cases import ptx

SPAN = {"none": 16, "32B": 32, "64B": 64, "128B": 128}
MODE = {"none": 0, "128B": 1, "64B": 2, "32B": 3}
DEPTH = {"f16": 16, "bf16": 16, "tf32": 8}
ROOM = 65536  # bytes of shared memory; the second operand begins half way


def bits_of(values, kind):
    """float32 values, representable in ``kind``, as its elements."""
    if kind == "f16":
        return values.astype("f2").view("u2")
    bits = np.ascontiguousarray(values, "f4").view("u4")
    return (bits >> 16).astype("u2") if kind == "bf16" else bits


def exact(rng, shape, kind):
    """Random float32 that ``kind`` represents."""
    x = rng.standard_normal(shape).astype("f4")
    if kind == "f16":
        return x.astype("f2").astype("f4")
    mask = 0xFFFF0000 if kind == "bf16" else 0xFFFFE000
    return (x.view("u4") & np.uint32(mask)).view("f4")


def swizzled(address, swizzle):
    """The 16-byte row within a span changes places with the number, modulo their count, of the 128 bytes it is in."""
    chunks = SPAN[swizzle] // 16
    line, chunk, byte = address // 128, address // 16 % 8, address % 16
    return line * 128 + (chunk ^ line % chunks) * 16 + byte


def place(image, start, elements, swizzle, major):
    """Write ``elements (mn, k)`` into ``image`` at ``start``; the leading and stride byte offsets.

    The offsets are chosen larger than needed, so that one taken for the other is seen.
    """
    size, span = elements.itemsize, SPAN[swizzle]
    mn, k = elements.shape
    per = 16 // size
    if major == "k":  # eight rows of a span each; without swizzle eight rows of 16 bytes, one block per 16 bytes of K
        stride = 8 * span if swizzle != "none" else 8 * 16 * 2 + 128
        leading = 16 if swizzle != "none" else 8 * 16
        for i in range(mn):
            for j in range(k):
                inner = j * size if swizzle != "none" else j // per * leading + j % per * size
                at = start + i // 8 * stride + i % 8 * span + inner
                image[(x := int(swizzled(at, swizzle))):x + size] = elements[i, j:j + 1].view("u1")
    else:  # rows along M or N: a span of it per k, eight k together
        if swizzle == "none":
            leading, stride = 128 * (mn // per) + 256, 128
        else:
            stride = 8 * span
            leading = stride * (k // 8) + 1024
        for i in range(mn):
            for j in range(k):
                if swizzle == "none":
                    at = start + i // per * stride + i % per * size + j % 8 * 16 + j // 8 * leading
                else:
                    wide = span // size
                    at = start + i // wide * leading + i % wide * size + j % 8 * span + j // 8 * stride
                image[(x := int(swizzled(at, swizzle))):x + size] = elements[i, j:j + 1].view("u1")
    return leading, stride


def descriptor(start, offsets, swizzle):
    """The 64 bits."""
    leading, stride = offsets
    return start >> 4 | leading >> 4 << 16 | stride >> 4 << 32 | MODE[swizzle] << 62


def fragment_a(elements, size):
    """``(128, 4)`` registers of A for 128 threads, from ``(64, k)`` elements; PTX ISA, figures of .m64nNk16 and k8."""
    out = np.zeros((128, 4), "u4")
    for thread in range(128):
        warp, lane = divmod(thread, 32)
        for register in range(4):
            row = 16 * warp + lane // 4 + 8 * (register % 2)
            if size == 2:
                column = lane % 4 * 2 + 8 * (register // 2)
                out[thread, register] = int(elements[row, column]) | int(elements[row, column + 1]) << 16
            else:
                out[thread, register] = elements[row, lane % 4 + 4 * (register // 2)]
    return out


def of_threads(table, n):
    """``(64, n)`` from what the threads hold, ``(128, n / 2)``."""
    out = np.zeros((64, n), table.dtype)
    for thread in range(128):
        warp, lane = divmod(thread, 32)
        for i in range(n // 2):
            out[16 * warp + lane // 4 + 8 * (i // 2 % 2), 8 * (i // 4) + lane % 4 * 2 + i % 2] = table[thread, i]
    return out


def kernel(instructions, n, extra=""):
    """PTX: copy ``image`` to shared memory and C and A to registers, run ``instructions``, store D."""
    d = [f"%d{i}" for i in range(n // 2)]
    params = ", ".join(f".param .u64 {name}" for name in ("image", "a", "c", "out"))
    lines = ["ld.param.u64 %rd0, [image]; ld.param.u64 %rd1, [a]; ld.param.u64 %rd2, [c]; ld.param.u64 %rd3, [out];",
             "mov.u32 %r0, %tid.x; mad.wide.u32 %rd1, %r0, 16, %rd1; ld.global.v4.b32 {%a0, %a1, %a2, %a3}, [%rd1];",
             f"mad.wide.u32 %rd2, %r0, {2 * n}, %rd2; mad.wide.u32 %rd3, %r0, {2 * n}, %rd3;",
             "mov.u32 %r1, room; mad.lo.u32 %r2, %r0, 16, %r1; mad.wide.u32 %rd4, %r0, 16, %rd0; mov.u32 %r3, 0;",
             "again: ld.global.v4.b32 {%r4, %r5, %r6, %r7}, [%rd4]; st.shared.v4.b32 [%r2], {%r4, %r5, %r6, %r7};",
             "add.u32 %r2, %r2, 2048; add.u64 %rd4, %rd4, 2048; add.u32 %r3, %r3, 1;",
             f"setp.lt.u32 %p1, %r3, {ROOM // 2048}; @%p1 bra again;"]
    lines += [f"ld.global.f32 {name}, [%rd2+{4 * i}];" for i, name in enumerate(d)]
    lines += ["fence.proxy.async.shared::cta;", "bar.sync 0;", "setp.eq.u32 %p2, %r0, %r0; not.pred %p3, %p2;", extra,
              instructions]
    lines += [f"st.global.f32 [%rd3+{4 * i}], {name};" for i, name in enumerate(d)]
    text = ptx("\n".join([*lines, "ret;"]), params, f".reg .b32 %a<4>; .reg .f32 %d<{n // 2}>;")
    return text.replace(".visible", ".extern .shared .align 1024 .b8 room[];\n.visible").replace("sm_90", "sm_90a")


FENCE, COMMIT = "wgmma.fence.sync.aligned;", "wgmma.commit_group.sync.aligned;"
WAIT = "wgmma.wait_group.sync.aligned 0;"


def opcode(kind, n):
    return f"wgmma.mma_async.sync.aligned.m64n{n}k{DEPTH[kind]}.f32.{kind}.{kind}"


def accumulators(n):
    return "{" + ", ".join(f"%d{i}" for i in range(n // 2)) + "}"


def go(text, image, a, c, shared_bytes=ROOM, **options):
    """The report and ``out (128, n / 2)``."""
    out = np.zeros_like(c)
    return run(text, grid=1, block=options.pop("block", 128), arch="sm_90a", args=[image, a, c, out],
               shared_bytes=shared_bytes, **options), out
