"""What `make test-all` runs and `make test` leaves out."""

from fnmatch import fnmatchcase
from typing import Any

import pytest


def exhaustive(*values: Any) -> Any:
    """One more set of arguments of a test, for `make test-all`: another has the kernel, and another the case."""
    return pytest.param(*values, marks=pytest.mark.exhaustive)


# Of tests with many cases, what `make test` leaves to `make test-all`: patterns (fnmatch, where "[" is itself) of
# "file::test[case]". A case of each kind stays.
SELDOM = (
    *(f"test_tensor_mma.py::test_code[{arch}-*]" for arch in ("sm_80", "sm_86", "sm_120")),
    *(f"test_tensor_mma.py::test_layouts[{case}]"
      for case in ("bf16x9-*", "tf32x3-False-True", "tf32x3-True-False", "fp16x3-True-*")),
    "test_races.py::*[shared.*_atomic_flag]",
    # Compilations and listings of other architectures than sm_80 and sm_90.
    *(f"test_sass_listing.py::*[sm_{n}]" for n in (75, 86, 89, 100, 120)),
    "test_arrivals.py::test_specialised_has_its_next_stage_under_way_and_no_more[128x*",
    "test_cli.py::test_ladder_for_turing_leaves_out_what_it_has_no_instructions_for",
    *(f"test_explore.py::test_sass_is_linked_to_the_instructions_that_were_traced[{n}]" for n in (3, 13)),
    # Instruments and tools.
    "test_tiles.py::test_calls_that_are_refused_at_random[cuMemAllocFromPoolAsync-719]",
    "test_tensor_mma.py::test_what_is_not_finite_reroutes_its_tile[nan]",
    "test_memmap_kill.py::*",
    # Slow cases beside others of their kind.
    *(f"test_linalg.py::test_hostile_columns[{family}-{sizes}]" for sizes, families in {
        "70-70-32-emulated": "graded*,condition*,dup*,Hilbert,zero*,ones,rows,tiny,huge,small",
        "90-60-512-ieee": "graded,condition*,dup*,half,zero,ones,rows,tiny,huge,small"}.items()
      for family in families.split(",")),
    "test_linalg.py::test_several_blocks[solve 140x140 ]",
    *(f"test_linalg.py::test_calls[{case}*" for case in ("qr 2x1x", "qr 1x", "lstsq 2x1x", "solve 2x1x", "inv 1x")),
    "test_arrivals.py::test_wide_arrives_when_its_loads_have_come[*handed-on stream-K]",
    *(f"test_every_family.py::test_products[tensor: {case}*" for case in (
        "streamed 128x128x64/8x8 3st stream-K NT", "fused 128x64x64/8x4 4st TN 70x67x70",
        "wgmma 64x128x64/4x8 4st split-K 3 NT")),
    *(f"test_templates.py::test_a_kernel_runs_in_all_three[{case}-*" for case in (
        "const uint", "several", "defaults alone", "some defaults", "an expression", "its namespace named",
        "its parameters named", "two templates", "another than that")),
    "test_tiles.py::test_calls_that_are_refused_at_random[-719]",
    "test_sass_rebuild.py::test_the_new_loop_is_proved_disassembles_and_is_shorter[False]",
    "test_explore.py::test_rungs_side_by_side",
    "test_guards.py::test_what_is_rerouted[narrow-scales of 3]",
    "test_tensor_mma.py::test_accuracy[normal-128-1.0-bf16x9]",
)


def is_seldom(nodeid: str) -> bool:
    """Whether a test is one of `SELDOM`."""
    path, _, test = nodeid.partition("::")  # a case may hold slashes as well
    name = f"{path.rpartition('/')[2]}::{test}"
    return any(fnmatchcase(name, pattern.replace("[", "[[]")) for pattern in SELDOM)
