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
    # Every rung against the H100's bits: three stay.
    *(f"test_hashes.py::test_bits_are_the_h100s[{n} *"
      for n in ("02", "03", "04", "05", "07", "08", "09", "10", "11", "12", "13", "14", "15", "18")),
    # Kernels by tensor cores: each scheme and path once.
    *(f"test_emulated_simulated.py::test_scales_and_persistence[{case}]"
      for case in ("fused-0-1", "turned-1-4", "fp16x3-3-4", "bf16x9 of 64-1-1", "64 rows-0-2")),
    *(f"test_emulated_simulated.py::test_layouts[{case}]" for case in ("turned-NT", "turned fused-TN", "narrow-NN")),
    *(f"test_emulated_simulated.py::test_batch[{case}]" for case in ("fused", "narrow", "turned fused")),
    "test_emulated_simulated.py::test_a_row_whose_scales_lie_far_apart[narrow-cases3]",
    "test_emulated_simulated.py::test_the_next_row_past_the_end_of_k[streamed-70]",
    "test_emulated_simulated.py::test_bits_lost_in_a_lower_half_and_far_along_k",
    "test_emulated_simulated.py::test_bits_lost_beyond_2_to_the_112[bf16x9]",
    "test_emulated_simulated.py::test_blocks_of_a_cluster_that_share_copies_of_b",
    "test_emulated_simulated.py::test_what_is_rerouted_is_added_up_with_compensation[fused]",
    "test_emulated_simulated.py::test_nothing_is_read_before_a[1-40-1-True]",
    *(f"test_emulated_simulated.py::test_what_the_guard_reroutes[{case}]" for case in ("streamed", "fused")),
    *(f"test_prefetch.py::test_tensor_core_kernels_ask_for_a_chunk[{case}]"
      for case in ("streamed-0-TN", "streamed-3-*", "fused-0-NT", "fused-3-*", "split-3-*", "split-0-TT", "split-0-NN",
                   "streamed-0-NN", "streamed-0-TT", "fused-0-TT")),
    *(f"test_tensor_mma.py::test_code[{arch}-*]" for arch in ("sm_80", "sm_86", "sm_120")),
    *(f"test_tensor_mma.py::test_layouts[{case}]"
      for case in ("bf16x9-*", "tf32x3-False-True", "tf32x3-True-False", "fp16x3-True-*")),
    *(f"test_tensor_rung.py::test_forgotten_synchronisation_is_found[{what}]"
      for what in ("no fence", "released too early", "no wait for wgmma")),
    "test_tensor_rung.py::test_forgotten_terms_show_in_the_error[first halves alone]",
    "test_library_counters.py::test_the_record_is_of_todays_kernels[512x512x256:NT emulated]",
    # Kernels by FFMA. Sizes on either side of a power of two stay, and a case of each kind.
    *(f"test_chain.py::test_every_number_of_columns[{n}]" for n in (*range(4, 8), *range(10, 16), *range(18, 32))),
    *(f"test_skinny.py::test_every_number_of_columns[{n}]" for n in range(1, 17) if n not in (1, 2, 5, 8, 16)),
    *(f"test_chain.py::test_edges_in_any_layout[{layout}]" for layout in ("NT", "TN")),
    "test_small.py::test_every_tile[*-TT-0.5]", "test_handed.py::test_older_and_newer_gpus[sm_89]",
    *(f"test_every_family.py::test_what_is_proposed_is_valid_and_hardly_spills[*{arch}*"
      for arch in ("sm_70", "sm_75", "sm_86", "sm_89", "sm_100", "sm_120")),
    *(f"test_library_simulated.py::test_blocks_with_one_tile[{tile}" for tile in ("16x16x32*", "32x32x32*")),
    *(f"test_simulate_matmul.py::test_the_launches_of_a_call[*-kernels{n}]" for n in (5, 6, 8)),
    "test_api_simulated.py::test_interpreted",
    *(f"test_profiler_agreement.py::test_counters_are_the_profilers[257x129x65-{n}*" for n in ("0", "13", "14")),
    *(f"test_skinny.py::test_compiles_without_spill[{arch}-*" for arch in ("sm_75", "sm_80", "sm_90-widths2")),
    "test_skinny.py::test_drawn_products",
    "test_small.py::test_tiles_hardly_spill[*-63]",
    "test_handed.py::test_wide_is_one_chain[NT-1]",
    "test_handed.py::test_what_the_flags_forget_is_found[acquire]",
    "test_handed.py::test_older_and_newer_gpus[sm_120]",
    "test_library_simulated.py::test_cluster_split_k[SpecialisedConfig(bm=16, bn=32*",
    *(f"test_order.py::test_random_synchronisations[{n}]" for n in (5, 7, 8, 9, 10, 11)),
    "test_races.py::*[shared.*_atomic_flag]",
    # Compilations and listings of other architectures than sm_80 and sm_90.
    *(f"test_sass_listing.py::*[sm_{n}]" for n in (75, 86, 89, 100, 120)),
    "test_kernels.py::test_compiles_without_spill[large_tile-sm_80]",
    *(f"test_kernels.py::test_compiles_without_spill[{name}-sm_75]" for name in ("register_tile", "double_fragments")),
    "test_kernels.py::test_compiles_without_spill[large_tile-sm_86]",
    "test_arrivals.py::test_specialised_has_its_next_stage_under_way_and_no_more[128x*",
    "test_cli.py::test_ladder_for_turing_leaves_out_what_it_has_no_instructions_for",
    *(f"test_explore.py::test_sass_is_linked_to_the_instructions_that_were_traced[{n}]" for n in (3, 13)),
    # Instruments and tools.
    "test_templates.py::test_a_kernel_runs_in_all_three[.cuh-*",
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
