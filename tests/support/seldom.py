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
    "test_register_file.py::test_the_record_holds_what_the_model_says[4]",
    "test_tune_profile.py::test_the_fit_finds_what_was_hidden*",
    "test_tune_profile.py::test_numbers_that_choose_worse*",
    "test_tune_profile.py::test_tensor_cores_that_do_not_win*",
    "test_memmap_kill.py::*", "test_commands.py::test_a_full_disk_is_said_in_a_line[-*",
)


def is_seldom(nodeid: str) -> bool:
    """Whether a test is one of `SELDOM`."""
    name = nodeid.rpartition("/")[2]
    return any(fnmatchcase(name, pattern.replace("[", "[[]")) for pattern in SELDOM)
