"""`peakgemm run`: a program as it is, with its FP32 products by peakgemm. The program's process is the command's own.

`launch` replaces the command by the program; `bootstrap/sitecustomize.py`, first in PYTHONPATH, is what Python imports
there and in child processes; `hook` reroutes what they import, counts, and tells at the end.
"""
