"""The kernel explorer: what a warp loads, where it lands, what its registers hold, from the simulator's own traces.

`recorder` watches a run, `banks` and `explain` put a warp's access into banks, wavefronts and a sentence, `timeline`
orders steps, `trace` makes one JSON of it; `kernels` knows what to run, `linked` adds SASS, `page` writes the pages.
docs/generate makes the browser simulator of them. web/types.d.ts has the schema.
"""
