"""Other libraries' own tests of the functions that peakgemm has too: torch's, the array API's and SciPy's."""
