"""The kernel explorer: what a warp loads, where it lands, what its registers hold, from the simulator's own traces.

`trace` records a run, `explain` puts a warp's access into banks, wavefronts and a sentence, `kernels` knows what to run,
`linked` adds SASS, `page` writes the pages; docs/explorer.md has the schema. `trace`, `explain` and `browser` need the
simulator and NumPy alone: they run in Pyodide.
"""
