"""Programs as others write them, none of which knows of peakgemm: `lab.run_programs` runs them.

`steps` has what they share, options, times and the line of JSON at the end; `training` what those in torch do.
"""
