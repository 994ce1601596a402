"""Other projects' kernels, to be timed beside ours."""
