"""Kernels of C++ by the names that people give them, and arguments of two bytes."""

import numpy as np
import pytest

from peakgemm.errors import InvalidType, InvalidValue
from peakgemm.tools.simulator import run
from peakgemm.tools.simulator.front.demangle import chosen, shown

NAMES = {
    "_Z3fooPfi": "foo(float*, int)", "_Z3fooPdi": "foo(double*, int)", "plain": "plain", "_Z1kv": "k()",
    "_Z3barPFfiEPKfRA3_i": "bar(float (*)(int), const float*, int (&)[3])",
    "_Z4packIJifEEvDpT_": "pack<int, float>(int, float)",
    "_Z4wrapIN2ns1VEfEvT_IT0_E": "wrap<ns::V, float>(ns::V<float>)",
    "_Z2enILN2ns1EE0EEvPi": "en<(ns::E)0>(int*)", "_Z4numsILm4ELj5ELc120EEvPi": "nums<4, 5, 'x'>(int*)",
    "_ZN2ns3fooIfLi8ELb1EEEvPT_PKNS_1VIS1_EES1_": "ns::foo<float, 8, true>(float*, const ns::V<float>*, float)",
    "_ZN2ns3fooIdLin3ELb0EEEvPT_PKNS_1VIS1_EES1_": "ns::foo<double, -3, false>(double*, const ns::V<double>*, double)",
    "_ZN2ns3fooINS_1VIfEELi8ELb0EEEvPT_PKNS1_IS3_EES3_":
        "ns::foo<ns::V<float>, 8, false>(ns::V<float>*, const ns::V<ns::V<float>>*, ns::V<float>)",
    "_ZN2ns3twoI6__halfmEEvT_T0_PS2_PS3_":
        "ns::two<__half, unsigned long>(__half, unsigned long, __half*, unsigned long*)",
    "_ZN2ns3twoIPKf6float4EEvT_T0_PS4_PS5_":
        "ns::two<const float*, float4>(const float*, float4, const float**, float4*)",
    "_ZN40_GLOBAL__N__8eb3fa5a_8_names_cu_db701a2b6hiddenEPi": "(anonymous namespace)::hidden(int*)",
    "_ZN8__main__4geluB2v1B4abcdE5ArrayIfLi1E1AEi": "__main__::gelu(Array<float, 1, A>, int)",
    "_Z3barIXadL_Z1fvEEEvv": "bar", "_ZN2ns3bazI": "ns::baz", "_Z": "_Z", "_Z9": "_Z9", "_ZN1aE": "a",
}  # fmt: skip


@pytest.mark.parametrize(("symbol", "name"), NAMES.items())
def test_demangling(symbol, name):
    assert shown(symbol) == name


@pytest.mark.parametrize(("entry", "symbol"), [
    ("_Z3fooPfi", "_Z3fooPfi"), ("foo(float*, int)", "_Z3fooPfi"), ("foo(double *,int)", "_Z3fooPdi"),
    ("plain", "plain"), ("k", "_Z1kv"), ("k(void)", "_Z1kv"), ("bar(float (*)(int), float const*, int (&)[3])",
                                                                "_Z3barPFfiEPKfRA3_i"),
    ("pack", "_Z4packIJifEEvDpT_"), ("pack< int,float >", "_Z4packIJifEEvDpT_"), ("nums<4ul, 5u, 'x'>",
                                                                                 "_Z4numsILm4ELj5ELc120EEvPi"),
    ("foo<float, 8, true>", "_ZN2ns3fooIfLi8ELb1EEEvPT_PKNS_1VIS1_EES1_"),
    ("ns::foo<double,-3,false>", "_ZN2ns3fooIdLin3ELb0EEEvPT_PKNS_1VIS1_EES1_"),
    ("two<__half, unsigned long>", "_ZN2ns3twoI6__halfmEEvT_T0_PS2_PS3_"),
    ("hidden", "_ZN40_GLOBAL__N__8eb3fa5a_8_names_cu_db701a2b6hiddenEPi"),
    ("gelu", "_ZN8__main__4geluB2v1B4abcdE5ArrayIfLi1E1AEi"),
])
def test_a_kernel_is_found_by_its_name(entry, symbol):
    assert chosen(entry, list(NAMES), "it has") == symbol


@pytest.mark.parametrize(("entry", "says"), [
    ("foo", r"it has 2 kernels 'foo': foo\(float\*, int\), foo\(double\*, int\); name one with its template"),
    ("ns::foo", r"it has 3 kernels 'ns::foo': ns::foo<float"), ("oo", "it has no kernel 'oo'; it has foo"),
    ("foo<float, 9, true>", "it has no kernel"), ("foo(float)", "no kernel"), ("ns::plain", "no kernel"),
])
def test_names_that_mean_no_kernel_or_several(entry, says):
    with pytest.raises(InvalidValue, match=says):
        chosen(entry, list(NAMES), "it has")


SOURCE = """
namespace ns {
template <class T, int N> __global__ void scale(const T* x, T* y) { y[threadIdx.x] = x[threadIdx.x] * N; }
template __global__ void scale<float, 3>(const float*, float*);
template __global__ void scale<int, 3>(const int*, int*);
}
__global__ void shift(const float* x, float* y, float by) { y[threadIdx.x] = x[threadIdx.x] + by; }
__global__ void shift(const int* x, int* y, int by) { y[threadIdx.x] = x[threadIdx.x] + by; }
"""


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "names.cu"
    path.write_text(SOURCE)
    return path


@pytest.mark.parametrize(("entry", "dtype", "more", "want"), [
    ("scale<float, 3>", "f4", [], 6), ("ns::scale<int,3>", "i4", [], 6), ("shift(const int*, int*, int)", "i4", [5], 7),
    ("_Z5shiftPKfPff", "f4", [0.5], 2.5), ("ns::scale<float, 7>", "f4", [], 14),  # the last one nobody asked for
])
def test_kernels_of_a_file(source, entry, dtype, more, want):
    x, y = np.full(8, 2, dtype), np.zeros(8, dtype)
    assert run(source, entry=entry, grid=1, block=8, args=[x, y, *more]).clean and (y == want).all()


@pytest.mark.parametrize(("entry", "says"), [
    (None, r"names.cu holds 4 kernels \(.*ns::scale<float, 3>\(const float\*, float\*\).*\); name one by --kernel \(e"),
    ("scale<float, nosuch>", r"does not instantiate ns::scale<class T, int N> as scale<float, nosuch>: .*nosuch. is"),
    ("shift", r"names.cu holds 2 kernels 'shift': shift\(const \w+\*, \w+\*, \w+\), shift"),
    ("nosuch", r"names.cu holds no kernel 'nosuch'; it has .*ns::scale<int, 3>\(const int\*, int\*\)$"),
    ("ns", "names.cu holds no kernel 'ns'; it has"),
])
def test_kernels_that_a_file_has_not(source, entry, says):
    with pytest.raises(InvalidValue, match=says):
        run(source, entry=entry, grid=1, block=8, args=[])


def test_the_only_kernel_needs_no_name(tmp_path):
    (tmp_path / "one.cu").write_text("__global__ void one(float* x) { x[threadIdx.x] += 1; }")
    x = np.zeros(4, "f4")
    assert run(tmp_path / "one.cu", grid=1, block=4, args=[x]).clean and (x == 1).all()


@pytest.mark.parametrize("type", ["struct __align__(2) half2bytes { unsigned short x; };", ""])
def test_arguments_of_two_bytes(tmp_path, type):
    name = "half2bytes" if type else "unsigned short"
    value = "a.x" if type else "a"
    (tmp_path / "h.cu").write_text(f"{type} __global__ void h({name} a, unsigned short* y) {{ *y = {value}; }}")
    y = np.zeros(1, "u2")
    for value, bits in ((np.float16(1.5), 0x3E00), (np.array(-2, "f2"), 0xC000), (np.uint16(0x3FC0), 0x3FC0)):
        if type or not np.issubdtype(np.asarray(value).dtype, np.floating):
            assert run(tmp_path / "h.cu", grid=1, block=1, args=[value, y]).clean and y[0] == bits
    if type:
        with pytest.raises(InvalidType, match=r"struct of 2 bytes, 1.5 was given; pass np.float16\(1.5\) for a __half"):
            run(tmp_path / "h.cu", grid=1, block=1, args=[1.5, y])
