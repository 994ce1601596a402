"""How well kernels are chosen: candidates timed on a GPU, what a profile's choice loses, and a profile fitted."""
