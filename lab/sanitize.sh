#!/usr/bin/env bash
# compute-sanitizer's four tools over every rung: one aligned and several awkward shapes, beta 0 and 1.
# Stops at the first tool that finds anything. API errors are off: cuda.core asks for a context
# before it makes one, which memcheck would report.
set -euo pipefail
cd "$(dirname "$0")/.."
export PYTHONPATH=src${PYTHONPATH:+:$PYTHONPATH}
for tool in memcheck racecheck initcheck synccheck; do
  for beta in 0 1; do
    echo "== $tool, beta $beta"
    compute-sanitizer --tool "$tool" --report-api-errors no --error-exitcode 9 --print-limit 5 \
      python3 -m lab.launch_rungs --beta "$beta" 256x256x64 257x129x65 1x1x1 127x255x33 33x1000x7
  done
done
# Allocations of exact size: in the caching allocator's blocks a read past an operand's end stays unseen.
export PYTORCH_NO_CUDA_MEMORY_CACHING=1
# racecheck last: it does not follow the rings of mbarriers, and reports them (docs/notebook/20).
for tool in memcheck initcheck synccheck racecheck; do
  echo "== $tool, library"
  # With fewer, synccheck loses track of the rings' mbarriers, and the launch fails.
  more=(); [ "$tool" = synccheck ] && more=(--num-cuda-barriers 16384)
  compute-sanitizer --tool "$tool" "${more[@]}" --report-api-errors no --error-exitcode 9 --print-limit 5 \
    python3 -m lab.launch_library
done
