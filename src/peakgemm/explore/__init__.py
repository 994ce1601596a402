"""The kernel explorer: what a warp loads, where it lands, what its registers hold, from the simulator's own traces.

`recorder` watches a run, `banks` and `explain` put a warp's access into banks, wavefronts and a sentence, `timeline` orders
steps, `trace` makes one JSON of it; `kernels` knows what to run, `linked` adds SASS, `page` writes the pages. All but
`linked` need the simulator and NumPy alone, and so run in Pyodide (`browser`). docs/explorer.md has the schema.
"""
