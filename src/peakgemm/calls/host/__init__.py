"""Products of arrays in the host's memory and in files: one launch or tiles, copies, one GPU or several."""
