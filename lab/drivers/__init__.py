"""Programs as others write them, none of which knows of peakgemm: `lab.run_programs` runs them.

Each ends with a line of JSON: milliseconds of a step (the median), and numbers to compare.
"""
