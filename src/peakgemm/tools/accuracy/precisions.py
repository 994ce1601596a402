"""The names of FP32 precisions: torch's, JAX's, cuBLAS's and ours, and what each computes on which GPU.

What is said of other libraries is what their documentation says; `peakgemm accuracy --of NAME` measures it here.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...errors import InvalidValue

_TF32 = "TF32 on tensor cores: inputs rounded to 11 bits, sums in FP32"
_TF32_FROM = f"{_TF32}, from sm_80; FP32 before"
_NATIVE = "FP32 by FFMA"
_SCHEME = "inputs split into {} each, {} products on tensor cores, sums in FP32; guarded, else FFMA; sm_80 and later"


@dataclass(frozen=True, slots=True)
class Precision:
    """One name of a precision.

    Attributes:
        library: ``"torch"``, ``"jax"``, ``"cublas"`` or ``"peakgemm"``.
        name: as `peakgemm accuracy --of` takes it where it can be measured so; else what one sets.
        asked: how a program asks for it.
        computes: what runs for float32 operands, and from which GPU on.
        fp32: whether results are as accurate as FP32: ``"yes"``, ``"no"``, or where they are.
        ours: the precision of `peakgemm.matmul` that does the same or better.
    """

    library: str
    name: str
    asked: str
    computes: str
    fp32: str
    ours: str

    @property
    def measurable(self) -> bool:
        """Whether ``peakgemm accuracy --of`` takes ``name``."""
        return ":" in self.name


_ALL = (
    Precision("peakgemm", "peakgemm:ieee", "matmul(a, b)", f"{_NATIVE}, on every GPU", "yes", "ieee"),
    Precision("peakgemm", "peakgemm:reproducible", "matmul(a, b, reproducible=True)",
              "FP32 by FFMA, one chain over K: bits depend on one row and one column; on every GPU",
              "yes; errors grow with K as of one chain", "reproducible"),
    Precision("peakgemm", "peakgemm:emulated", 'matmul(a, b, precision="emulated")',
              "fp16x3 where that is faster, else FFMA", "yes", "emulated"),
    Precision("peakgemm", "peakgemm:fp16x3", 'matmul(a, b, precision="fp16x3")',
              _SCHEME.format("2 scaled FP16 numbers", 3), "yes", "fp16x3"),
    Precision("peakgemm", "peakgemm:tf32x3", 'matmul(a, b, precision="tf32x3")', _SCHEME.format("2 TF32 numbers", 3),
              "yes", "tf32x3"),
    Precision("peakgemm", "peakgemm:bf16x9", 'matmul(a, b, precision="bf16x9")', _SCHEME.format("3 BF16 numbers", 9),
              "yes", "bf16x9"),
    Precision("torch", "torch:ieee", 'torch.backends.cuda.matmul.fp32_precision = "ieee"', _NATIVE, "yes", "ieee"),
    Precision("torch", "torch:tf32", 'torch.backends.cuda.matmul.fp32_precision = "tf32" (allow_tf32 = True)',
              _TF32_FROM, "no", "emulated"),
    Precision("torch", "torch:highest", 'torch.set_float32_matmul_precision("highest"), the default', _NATIVE, "yes",
              "ieee"),
    Precision("torch", "torch:high", 'torch.set_float32_matmul_precision("high")', _TF32_FROM, "no", "emulated"),
    Precision("torch", "torch:medium", 'torch.set_float32_matmul_precision("medium")',
              f"BF16 where a backend has it; on CUDA as high: {_TF32_FROM}", "no", "emulated"),
    Precision("jax", "jax:default", 'jax.default_matmul_precision("default"), the default',
              f"the fastest: {_TF32_FROM}; FP32 on a CPU", "no", "emulated"),
    Precision("jax", "jax:high", 'jax.default_matmul_precision("high"), or "tensorfloat32"', _TF32_FROM, "no",
              "emulated"),
    Precision("jax", "jax:highest", 'jax.default_matmul_precision("highest"), or "float32"', _NATIVE, "yes", "ieee"),
    Precision("jax", "jax:F32_F32_F32", 'precision="F32_F32_F32", a DotAlgorithmPreset', _NATIVE, "yes", "ieee"),
    Precision("jax", "jax:TF32_TF32_F32", 'precision="TF32_TF32_F32", a DotAlgorithmPreset', _TF32_FROM, "no",
              "emulated"),
    Precision("jax", "jax:TF32_TF32_F32_X3", 'precision="TF32_TF32_F32_X3", a DotAlgorithmPreset',
              "inputs split into 2 TF32 numbers, 3 products; no guard", "for values of moderate size", "emulated"),
    Precision("jax", "jax:BF16_BF16_F32", 'precision="BF16_BF16_F32", a DotAlgorithmPreset',
              "inputs rounded to BF16 (8 bits), sums in FP32", "no", "emulated"),
    Precision("jax", "jax:BF16_BF16_F32_X3", 'precision="BF16_BF16_F32_X3", a DotAlgorithmPreset',
              "inputs split into 2 BF16 numbers, 3 products; no guard", "no: 16 bits", "emulated"),
    Precision("jax", "jax:BF16_BF16_F32_X6", 'precision="BF16_BF16_F32_X6", a DotAlgorithmPreset',
              "inputs split into 3 BF16 numbers, 6 products; no guard", "for values of moderate size", "emulated"),
    Precision("jax", "jax:BF16_BF16_F32_X9", 'precision="BF16_BF16_F32_X9", a DotAlgorithmPreset',
              "inputs split into 3 BF16 numbers, 9 products; no guard; measured on an H100: as TF32",
              "no on an H100, as measured", "emulated"),
    Precision("cublas", "CUBLAS_COMPUTE_32F_PEDANTIC", "its compute type", _NATIVE, "yes", "ieee"),
    Precision("cublas", "CUBLAS_COMPUTE_32F", "its compute type, without CUBLAS_TF32_TENSOR_OP_MATH", _NATIVE, "yes",
              "ieee"),
    Precision("cublas", "CUBLAS_COMPUTE_32F_FAST_TF32", "its compute type, or NVIDIA_TF32_OVERRIDE unset and "
              "CUBLAS_TF32_TENSOR_OP_MATH", _TF32_FROM, "no", "emulated"),
    Precision("cublas", "CUBLAS_COMPUTE_32F_EMULATED_16BFX9", "its compute type, or CUBLAS_EMULATE_SINGLE_PRECISION=1 "
              "with CUBLAS_EMULATION_STRATEGY (cuBLAS 12.9)", "BF16x9 on sm_100 and sm_103; FP32 by FFMA elsewhere",
              "yes", "bf16x9"),
)


def precisions(library: str | None = None) -> tuple[Precision, ...]:
    """What the names of FP32 precisions mean, `Precision` by `Precision`; ``library`` None: of all of them.

    The page docs/precisions.md is made of it, with measured errors.

    Raises:
        InvalidValue: no library whose names are known; capital letters make no difference.
    """
    if library is None:
        return _ALL
    found = tuple(x for x in _ALL if isinstance(library, str) and x.library == library.lower())
    if not found:
        known = ", ".join(repr(name) for name in dict.fromkeys(x.library for x in _ALL))
        raise InvalidValue(f"library = {library!r} has no precisions here; valid ones: {known}, or None for all")
    return found
