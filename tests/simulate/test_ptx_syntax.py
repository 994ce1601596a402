"""What PTX may look like: forms that compilers and headers write, and what is not known, elsewhere or unreached."""

import numpy as np
import pytest

from peakgemm.errors import InvalidValue
from peakgemm.tools.simulator import PtxError, UnknownInstruction, run
from peakgemm.tools.simulator.front.parser import parse
from peakgemm.tools.simulator.front.tokens import integer
from simulator_cases import ptx, values


def stored(body, dtype="u4", count=1, **options):
    """What ``body`` stores at ``%rd0``."""
    return values(body, leaves="", out=np.zeros(count, dtype), **options)


@pytest.mark.parametrize(("text", "value"), [("017", 15), ("0b101", 5), ("0B11U", 3), ("0x1FU", 31), ("0X1f", 31),
                                             ("5U", 5), ("0", 0), ("00", 0), ("08", None), ("0b2", None)])
def test_integer_literals(text, value):
    assert integer(text) == value


@pytest.mark.parametrize(("kind", "size", "literal", "value"), [
    ("f32", "f4", "-0f3F800000", -1.0), ("f32", "f4", "-1.5", -1.5), ("f32", "f4", "2.5e-1", 0.25),
    ("f32", "f4", "1e3", 1000.0), ("f32", "f4", ".5", 0.5), ("f32", "f4", "3.", 3.0),
    ("f64", "f8", "-0d3FF8000000000000", -1.5), ("f64", "f8", "-2.25", -2.25), ("f64", "f8", "1E-2", 0.01),
])
def test_float_literals(kind, size, literal, value):
    register = {"f32": "%f1", "f64": "%d1"}[kind]
    for form in (f"mov.{kind} {register}, {literal};",
                 f"mov.{kind} {register}, 0.0; add.{kind} {register}, {register}, {literal};"):
        assert stored(f"{form} st.global.{kind} [%rd0], {register};", size) == [np.dtype(size).type(value)]


def test_addresses_of_elements():
    array = ".global .align 4 .u32 a[4] = {10, 11, 12, 13}; .global .u16 m[2][3] = {{1, 2, 3}, {4, 5, 6}};"
    body = ("ld.global.u32 %r1, a[2]; st.global.u32 [%rd0], %r1; mov.u64 %rd1, a[1]; mov.u64 %rd2, a+4; mov.u64 %rd3, "
            "a[0]; sub.u64 %rd4, %rd2, %rd3; sub.u64 %rd5, %rd1, %rd2; st.global.u32 [%rd0+4], %rd4; st.global.u32 "
            "[%rd0+8], %rd5; ld.global.u16 %h1, m[1][1]; cvt.u32.u16 %r2, %h1; st.global.u32 [%rd0+12], %r2;"
            "ld.global.u32 %r1, [a[3]-4]; st.global.u32 [%rd0+16], %r1; ld.global.u32 %r1, [a+-0+8];"
            "st.global.u32 [%rd0+20], %r1;")
    assert stored(body, before=array, count=6) == [12, 4, 0, 5, 12, 12]


def test_vector_registers():
    vectors = ".reg .v4 .f32 v, w<2>; .reg .v2 .u32 p;"
    body = ("ld.global.v4.f32 v, [c]; add.f32 v.x, v.x, v.w; mov.f32 w1.g, v.b; mov.v4.f32 w0, v; add.f32 %f1, w0.r, "
            "w1.y; st.global.f32 [%rd0], %f1; mov.u32 p.x, 5; mov.u32 p.y, 6; st.global.v2.u32 [%rd0+8], p;"
            "mov.v2.u32 {%r1, %r2}, p; st.global.u32 [%rd0+4], %r2;")
    before = ".global .align 16 .f32 c[4] = {1.0, 2.0, 4.0, 8.0};"
    out = stored(body, registers=vectors, before=before, count=4)
    assert np.array(out, "u4").view("f4")[0] == 9 + 4 and out[1:] == [6, 5, 6]


def test_directives_that_a_kernel_does_not_use():
    before = ('.weak .global .u32 w; .common .global .u32 c; .tex .u64 t; .global .texref o; .global .samplerref s;'
              '.global .surfref f; .pragma "nounroll"; .extern .global .u32 e[]; .file 1 "a.cu", 12, 34\n'
              '.section .debug_str { .b8 1, 2 }\n.section .nv.info, "a" { info: .b8 3 }\n.func g; .alias h, g;\n'
              '.extern .func (.param .b32 r) out (.param .b64 a, .param .b32 b);')
    text = ptx('.loc 1 5 3\n .loc 1 7 3, function_name $L, inlined_at 1 5 3\n .pragma "nounroll"; ld.param.u64 %rd0, '
               '[out]; st.global.u32 [%rd0], 9; ret;', ".param .u64 .ptr .global .align 4 out")
    text = text.replace(")\n{", ")\n.maxntid 32, 1, 1\n.minnctapersm 1\n.maxnreg 64\n.noreturn\n{")
    out = np.zeros(1, "u4")
    assert run(text.replace(".visible", f"{before}\n.visible"), entry="k", grid=1, block=1, args=[out]).clean
    assert out[0] == 9


def test_text_begins_with_a_mark_of_byte_order(tmp_path):
    text = "\ufeff" + ptx("ld.param.u64 %rd0, [out]; st.global.u32 [%rd0], 3; ret;", ".param .u64 out")
    (tmp_path / "k.ptx").write_text(text, encoding="utf-8")
    (tmp_path / "k.cu").write_text('\ufeffextern "C" __global__ void k(int* x) { *x = 3; }', encoding="utf-8")
    for source in (text, tmp_path / "k.ptx", tmp_path / "k.cu"):
        out = np.zeros(1, "u4")
        assert run(source, grid=1, block=1, args=[out]).clean and out[0] == 3


UNKNOWN = ["mov.u32 %r0, %envreg3;",
           "frobnicate.b32 %r1, %r2;", "mov.u32 %r0, %nosuch;", "add.u32 %r1, %r2, <3>;", "bra NOWHERE;",
           "@%q0 bra OVER;", "mov.u32 %r1, %r99999;", "ld.global.u32 %r1, nosuch[2];",
           "frob.x [%r1], {%r2, (%r3)} : 5;"]


@pytest.mark.parametrize("text", UNKNOWN)
def test_what_is_not_known_is_an_error_only_where_it_is_executed(text):
    body = f"mov.u32 %r1, 4; setp.eq.u32 %p1, %r1, 4; @%p1 bra OVER; {text} OVER: st.global.u32 [%rd0], %r1;"
    assert stored(body) == [4]
    with pytest.raises((PtxError, UnknownInstruction), match=r"PTX line 1[45]"):
        stored(body.replace("%r1, 4; @", "%r1, 5; @"))
    other = ptx(text + " ret;").replace("entry k(", "entry other(").split(".address_size 64")[1]
    assert stored("st.global.u32 [%rd0], 8;", before=other.replace(".visible", ".weak")) == [8]


CLUSTER = "shared::cluster.mbarrier::complete_tx::bytes"
MISSING = ["tex.2d.v4.f32.f32 {%f0, %f1, %f2, %f3}, [out, {%f4, %f5}];",
           "fma.rn.oob.f16 %h1, %h2, %h3, %h1;", "add.rn.f32.f16 %r1, %h1, %r2;", "add.rz.f16 %h1, %h2, %h3;",
           "mad.hi.sat.s32 %r1, %r2, %r3, %r4;", "max.s32.frob %r1, %r2, %r3;", "and.b32.relu %r1, %r2, %r3;",
           "cvt.rs.f16x2.f32 %r1, %f1, %f2, %r3;", "cvt.rn.satfinite.e2m1x2.f32 %h1, %f1, %f2;",
           "getctarank.u64 %r1, %rd1;",
           "prmt.b32.f4e %r1, %r2, %r3, %r4;", "lop3.or.b32 %r1|%p2, %r2, %r3, %r4, 0x3f, %p3;", "brkpt;",
           "vavrg4.u32.u32.u32 %r1, %r2, %r3, %r4;", "vadd.u32.u32.u32 %r1, %r2, %r3;",
           "szext.clamp.frob.s32 %r1, %r2, %r3;",
           "movmatrix.sync.aligned.m8n8.trans.b16 %r1, %r2;", "redux.sync.add.f32 %f1, %f2, -1;",
           "match.sync.b32 %r1, %r2, -1;", "atom.global.exch.b16 %h1, [%rd0], %h2;", "mul.wide.f32 %f1, %f2, %f3, %f4;",
           "wmma.store.d.sync.aligned.row.m16n16k16.f32 [%rd0], {%f0, %f1, %f2, %f3, %f4, %f5, %f6, %f7}, %r1;",
           "shfl.bfly.b32 %r2, %r1, 1, 0x1f;", "vote.ballot.b32 %r2, %p7;", "atom.global.add.u16 %h0, [%rd3], %h1;",
           "atom.global.min.noftz.f16 %h0, [%rd3], %h1;", "atom.global.cas.f16 %h0, [%rd3], %h1, %h1;",
           "atom.shared::cluster.add.u32 %r8, [%r7], 1;", "red.shared::cluster.add.u32 [%r7], 1;",
           "barrier.cluster.wait;", "barrier.cluster.arrive.relaxed; barrier.cluster.wait;", "mapa.u64 %rd1, %rd0, 1;",
           "mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%r0], 16;",
           "mbarrier.arrive_drop.shared::cta.b64 %rd1, [%r0];",
           "mbarrier.expect_tx.relaxed.cluster.shared::cluster.b64 [%r0], 16;",
           "mbarrier.arrive.expect_tx.relaxed.cluster.shared::cluster.b64 _, [%r7], 16;",
           f"st.async.{CLUSTER}.v4.b64 [%r11], {{%rd2, %rd2, %rd2, %rd2}}, [%r12];",
           f"st.async.{CLUSTER}.v8.b32 [%r11], %r7, [%r12];", f"st.async.{CLUSTER}.b16 [%r11], %r7, [%r12];",
           "st.async.mbarrier::complete_tx::bytes.u32 [%rd2], %r7, [%rd3];",
           "st.async.release.gpu.global.u32 [%rd2], %r7;",
           "st.async.shared::cta.mbarrier::complete_tx::bytes.u32 [%r4], %r7, [%r5];",
           f"red.async.relaxed.cluster.{CLUSTER}.add.u32 [%r7], %r0, [%r7];",
           "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster.L2::cache_hint [%r1], "
           "[%rd0], 16, [%r0], %h1, %rd1;",
           "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%r1], [%r1], 16, [%r0];",
           "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%rd0], [%r1], 16;",
           "cp.async.bulk.tensor.3d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes [%r1], "
           "[%rd0, {%r2, %r2, %r2}], [%r0], {%h1};",
           "cp.async.bulk.tensor.1d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster [%r1], "
           "[%rd0, {%r2}], [%r0], %h1;",
           "cp.reduce.async.bulk.tensor.1d.global.shared::cta.add.tile.bulk_group [%rd0, {%r2}], [%r1];"]


@pytest.mark.parametrize("text", MISSING)
def test_what_is_missing_names_itself_its_line_and_the_page_of_what_is_missing(text):
    with pytest.raises(UnknownInstruction) as refused:
        stored(f"\n{text}\n")
    name = text.split(" ")[0].strip(";")
    assert all(part in str(refused.value) for part in (name, "PTX line 15", "docs/simulator.md"))


@pytest.mark.parametrize("before", [".frobnicate a, b;", ".frobnicate { .b8 5; }", ".global .b1024 wide;",
                                    ".global .u32 x = {frob(3)};", ".entry bad(.param .b999 x) { ret; }",
                                    ".func (.param .b999 r) f(.param .b32 y) { ret; }", ".weak .frob x;"])
def test_directives_that_are_not_known_are_passed_over(before):
    assert stored("st.global.u32 [%rd0], 8;", before=before) == [8]


def test_what_was_passed_over_is_named_where_it_is_missing():
    with pytest.raises(PtxError, match=r"PTX line 4: '.b999' where a parameter type is expected"):
        run(ptx("ret;").replace(".visible", ".entry bad(.param .b999 x) { ret; }\n.visible"), entry="bad", grid=1,
            block=1, args=[0])
    with pytest.raises(UnknownInstruction, match=r"PTX line 16.*x is not a variable.*line 15: `.shared .b999 x"):
        stored("\n.shared .b999 x[4];\n mov.u32 %r1, x;")
    with pytest.raises(InvalidValue, match=r"holds 0 kernels \(none\); pass entry=; not understood: line 4: `.entyr k"):
        run(ptx("ret;").replace(".visible .entry", ".entyr"), grid=1, block=1, args=[])


@pytest.mark.parametrize(("head", "says"), [
    (".reg .b32 %x<99999999999>;", "'%x1' where a declared register"),
    (".shared .align 3 .b8 s[4];", "s is not a variable"), (".shared .b8 s[-4];", "s is not a variable"),
    (".local .b8 s[999999999999999999];", "s is not a variable"),
])
def test_numbers_that_cannot_be(head, says):
    with pytest.raises((PtxError, UnknownInstruction), match=says):
        stored(f"{head} mov.u32 %r1, s; " if " s[" in head else f"{head} mov.u32 %r1, %x1;")


def test_declared_sizes_take_no_room_before_they_are_checked():
    with pytest.raises(InvalidValue, match="max_memory allows"):
        run(ptx("ret;").replace(".visible", ".global .b8 big[99999999999];\n.visible"), grid=1, block=1, args=[])
    with pytest.raises(InvalidValue, match=r"bytes of local memory per thread, a GPU has 524,288"):
        run(ptx(".local .b8 big[99999999]; ret;"), grid=1, block=1, args=[])
    assert run(ptx("ret;", registers=".reg .b32 %many<16000000>;"), grid=1, block=1, args=[]).clean


# ---- variables and what they begin with ------------------------------------------------------


@pytest.mark.parametrize(("text", "size", "align"), [
    (".shared .v4 .f32 g[64];", 1024, 16), (".global .v2 .u16 g[3];", 12, 4), (".global .v4 .b8 g;", 4, 4),
    (".global .u32 g[] = {1, 2, 3};", 12, 4), (".global .u32 g[][2] = {{1, 2}, {3}};", 16, 4),
    (".global .u32 g[][2] = {1, 2, 3};", 16, 4), (".global .v2 .f32 g[] = {{1.0, 2.0}, {3.0, 4.0}};", 16, 8),
    (".global .align 64 .u8 g[5];", 5, 64), (".extern .shared .align 16 .b8 g[];", 0, 16),
])
def test_sizes(text, size, align):
    variable = parse(ptx("ret;").replace(".visible", f"{text}\n.visible")).variables["g"]
    assert (variable.size, variable.align) == (size, align)


def test_shared_vectors_have_room_for_all_their_elements():
    body = (".shared .v4 .f32 s[64]; mov.u32 %r1, s; mad.lo.u32 %r2, %r0, 16, %r1;"
            "st.shared.v4.b32 [%r2], {%r0, %r0, %r0, %r0}; bar.sync 0; xor.b32 %r3, %r0, 63;"
            "mad.lo.u32 %r3, %r3, 16, %r1; ld.shared.b32 %r9, [%r3+12];")
    assert values(body, 64) == list(range(63, -1, -1))


@pytest.mark.parametrize(("text", "dtype", "want"), [
    (".global .u32 g[2][3] = {{1, 2}, {3, 4}};", "u4", [1, 2, 0, 3, 4, 0]),
    (".global .u32 g[2][3] = {1, 2, 3, 4};", "u4", [1, 2, 3, 4, 0, 0]),
    (".global .s8 g[2][2][2] = {{{1}, {-2, 3}}, {{4}}};", "i1", [1, 0, -2, 3, 4, 0, 0, 0]),
    (".global .u32 g[] = {017, 0b101, 0b11U, 0x1FU, 5U, -1};", "u4", [15, 5, 3, 31, 5, 2**32 - 1]),
    (".global .f32 g[5] = {1.5, 0f3F800000, 1e3, -2.5, 3};", "f4", [1.5, 1, 1000, -2.5, 3]),
    (".global .f32 g[2] = {0dC000000000000000, -0f40400000};", "f4", [-2, -3]),
    (".global .f64 g[3] = {1.5, 0f40000000, -0d3FF0000000000000};", "f8", [1.5, 2, -1]),
    (".global .v4 .f32 g[2] = {{1.0, 2.0}, {5.0, 6.0, 7.0, 8.0}};", "f4", [1, 2, 0, 0, 5, 6, 7, 8]),
    (".global .v2 .u32 g = {1, 2};", "u4", [1, 2]), (".global .u32 g = 7;", "u4", [7]),
    (".global .b32 g[2] = {1.5, 2};", "u4", [0x3FC00000, 2]), (".global .u32 g[3] = {};", "u4", [0, 0, 0]),
])
def test_initialisers(text, dtype, want):
    body = ("mov.u64 %rd1, g; mov.u32 %r1, 0; TOP: ld.global.u8 %h1, [%rd1]; st.global.u8 [%rd0], %h1;"
            "add.u64 %rd0, %rd0, 1; add.u64 %rd1, %rd1, 1; add.u32 %r1, %r1, 1;"
            f"setp.lt.u32 %p1, %r1, {len(want) * np.dtype(dtype).itemsize}; @%p1 bra TOP;")
    assert stored(body, dtype, len(want), before=text) == want


BYTES = ", ".join(f"0xff{'00' * byte}(a)" for byte in range(8))


@pytest.mark.parametrize("initial", ["0, generic(a)+8", "0, a+8", "0, generic(a)+4+4", "0, a+12-4", BYTES])
def test_addresses_of_other_variables(initial):
    kind, offset = ("u8 g[8]", 0) if initial is BYTES else ("u64 g[2]", 8)
    before = f".global .align 8 .{kind} = {{{initial}}}; .global .align 4 .u32 a[4] = {{1, 2, 3, 4}};"
    body = f"mov.u64 %rd2, g; ld.global.u64 %rd2, [%rd2+{offset}]; ld.u32 %r9, [%rd2];"
    assert values(body, before=before) == [1 if initial is BYTES else 3]


def test_an_initialiser_with_too_many_values_is_no_variable():
    with pytest.raises(InvalidValue, match=r"g is not a variable of this kernel; not understood: line 4: `.global"):
        values("mov.u64 %rd1, g;", before=".global .u32 g[2] = {1, 2, 3};")


# ---- labels: each block in braces has its own, and sees those around it ----------------------

# Adds 10 while %r9 is below the bound.
LOOP = "{{ .reg .pred p; again: setp.lt.u32 p, %r9, {}; @!p bra done; add.u32 %r9, %r9, 10; bra again; done: }}"



@pytest.mark.parametrize(("body", "want"), [
    (LOOP.format(25) + "add.u32 %r9, %r9, 1;" + LOOP.format(45), 51),
    (LOOP.format(5) + "add.u32 %r9, %r9, 1;" + LOOP.format(5), 11),
    ("{ { bra end; } add.u32 %r9, %r9, 1; } add.u32 %r9, %r9, 2; end: add.u32 %r9, %r9, 4;", 4),
    ("top: add.u32 %r9, %r9, 1; { setp.lt.u32 %p1, %r9, 3; @%p1 bra top; }", 3),
])
def test_labels_of_blocks(body, want):
    assert values(body) == [want]


@pytest.mark.parametrize("body", ["{ hidden: } bra hidden;", "bra hidden; { hidden: }", "{ hidden: } { bra hidden; }",
                                  "{ t: .branchtargets a; } a: brx.idx %r0, t;", "t: .branchtargets b; brx.idx %r0, t;",
                                  "a: brx.idx %r0, a;", "t: .branchtargets a; a: bra t;"])
def test_a_label_in_another_block_is_no_target(body):
    with pytest.raises(PtxError, match=r"PTX line \d+: .* names a label that is not in kernel k, or is in a block"):
        values(body)


@pytest.mark.parametrize("body", ["x: x:", "{ x: add.u32 %r9, %r9, 1; x: }", "x: x: .branchtargets x;"])
def test_one_block_may_not_declare_a_label_twice(body):
    with pytest.raises(PtxError, match=r"PTX line \d+: label x is declared twice in one block"):
        values(body)
