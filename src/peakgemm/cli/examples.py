"""Examples of every command, shown at the end of its ``--help``; a test parses each."""

from __future__ import annotations

EXAMPLES: dict[str, tuple[tuple[str, str], ...]] = {
    "ladder": (("peakgemm ladder", "every rung: timed with a GPU, simulated without"),
               ("peakgemm ladder --size 1024,4096 --json ladder.json", "two sizes, kept as a record"),
               ("peakgemm ladder --rungs 03-05 --size 256", "some rungs"),
               ("peakgemm ladder --explain 12", "one rung in full")),
    "sweep": (("peakgemm sweep --more 40 --json sweep.json", "the published tiles and 40 further ones"),
              ("peakgemm sweep --tile 128,8,128,8,8,db --arch sm_80", "one tile, double-buffered")),
    "bench": (("peakgemm bench --suite all --json bench-ieee.json", "every suite, kept row by row"),
              ("peakgemm bench --shape 4096x4096x1024:NT --precision ieee,emulated", "one product, two precisions"),
              ("peakgemm bench --suite square --peers torch,triton --svg ratios.svg", "others beside, and a plot"),
              ("peakgemm bench --suite linalg --json linalg.json", "linear algebra beside cuBLAS and cuSOLVER")),
    "tune": (("peakgemm tune --shape 1000x700x300 --dry-run", "what would be tried, without a GPU"),
             ("peakgemm tune --suite square", "keep what beats the default")),
    "accuracy": (("peakgemm accuracy --host --sizes 16,64", "the IEEE kernels' arithmetic, on the CPU"),
                 ("peakgemm accuracy --of peakgemm:emulated --json accuracy.json", "beside cuBLAS, on the GPU"),
                 ("peakgemm accuracy --of mypackage.gemm:matmul --strict", "a function of your own; 1 if it fails"),
                 ("peakgemm accuracy --suite linalg", "linear algebra on hostile matrices; 1 if it fails")),
    "simulate": (("peakgemm simulate 03 --size 64", "a rung: counters, and what each source line costs"),
                 ("peakgemm simulate matmul --shape 100x100x100", "what matmul would run"),
                 ("peakgemm simulate my.cu --grid 4x4 --block 256 --arg f32:4096:normal --arg 64",
                  "a kernel of your own"),
                 ("peakgemm simulate program.cu --size 64 --expect matmul", "a program, its result checked")),
    "limits": (("peakgemm limits 12", "a rung at 4096: ceilings, modelled time, what to try"),
               ("peakgemm limits 09 --compare 10", "two rungs side by side"),
               ("peakgemm limits program.cu --size 4096", "the launch in a program of your own")),
    "explore": (("peakgemm explore 03 04 -o conflicts.html", "two rungs, lane by lane, on one page"),
                ("peakgemm explore --serve", "every rung, on localhost"),
                ("peakgemm explore my.cu --grid 4x4 --block 256 --arg f32:4096:normal --arg 64 -o my.html",
                 "a kernel of your own")),
    "exercise": (("peakgemm exercise 04", "a kernel with bank conflicts, in exercise_04.cu"),
                 ("peakgemm exercise 04 --check", "what is still wrong with it")),
    "inspect": (("peakgemm inspect 14", "a rung: resources, main loop, register reads"),
                ("peakgemm inspect 13 --compare 14", "two kernels side by side"),),
    "inspect show": (("peakgemm inspect 14 --listing", "PTX and SASS of the main loop"),
                     ("peakgemm inspect 13 --compare 14", "two kernels side by side"),
                     ("peakgemm inspect matmul --shape 4096x4096x4096 --html page.html", "what matmul would run"),
                     ("peakgemm inspect my.cubin --json facts.json", "a file of your own")),
    "inspect map": (("peakgemm inspect map --arch sm_90 --tile 8x8", "registers of a thread tile by bank"),
                    ("peakgemm inspect map --arch sm_52 --naive --json map.json", "the naive map of Maxwell")),
    "inspect occupancy": (
        ("peakgemm inspect occupancy --threads 256 --registers 128", "on every architecture"),
        ("peakgemm inspect occupancy --threads 256 --registers 96 --shared 49152 --arch sm_90", "on one")),
    "sass optimize": (("peakgemm sass optimize 14", "build the loop anew, prove it; with a GPU, time it"),
                      ("peakgemm sass optimize 14 --size 4096,8192 -o loop.cubin", "keep the fastest")),
    "sass check": (("peakgemm sass check my.cubin", "are the control bits safe? 1 where one is not"),
                   ("peakgemm sass check patched.cubin --against my.cubin --json", "the same computation, as JSON"),
                   ("peakgemm sass check ring.cubin --arrivals", "is a stage given back while it is still read?")),
    "sass apply": (("peakgemm sass apply faster.jsonl my.cubin --output patched.cubin", "a patch, checked"),),
    "verify": (("peakgemm verify --products 20 --host", "what reproducible=True promises, on the CPU"),
               ("peakgemm verify --json verify.json", "this GPU held to it; 1 where a bit differs")),
    "report": (("peakgemm report ladder.json sweep.json -o report.html", "records that --json wrote"),
               ("peakgemm report results/h200 -o h200.html", "all records of a folder")),
    "run": (("peakgemm run train.py --epochs 3", "a program as it is, its FP32 products by peakgemm"),
            ("peakgemm run --precision emulated --linalg --check 100 -m package.fit", "a module, checked"),
            ("peakgemm run --json run.json -m torch.distributed.run --nproc-per-node 8 train.py", "all its processes")),
    "multiply": (("peakgemm multiply A.npy B.npy -o C.npy", "matrices in files; run it again after a kill"),
                 ("peakgemm multiply A.npy B.npy -o C.npy --c D.npy --beta -1 --devices all", "on all GPUs")),
    "doctor": (("peakgemm doctor", "what is here, and what is missing"),
               ("peakgemm doctor --json doctor.json", "for a bug report")),
    "cache info": (("peakgemm cache info", "where the cache lies, and how large it is"),),
    "cache clear": (("peakgemm cache clear", "compiled kernels"),
                    ("peakgemm cache clear --tuned", "tuning entries and profiles, too")),
    "cache warm": (("peakgemm cache warm --arch sm_90", "compile what the library uses, before a first call"),
                   ("peakgemm cache warm --shape 4096x4096x4096", "only what one product runs")),
}


def epilog(name: str) -> str | None:
    """The end of a command's help; click keeps lines after its mark as they are."""
    found = EXAMPLES.get(name)
    if found is None:
        return None
    return "\b\nExamples:\n" + "\n".join(f"  {line}\n      {what}" for line, what in found)
