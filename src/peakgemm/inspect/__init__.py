"""What can be read off a compiled kernel without running it: occupancy, SASS, main loop, roofline."""
