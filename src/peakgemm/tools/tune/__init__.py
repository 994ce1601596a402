"""The search for the fastest kernel and configuration of a problem, and where its results are kept."""
