"""A main loop built anew from what the compiler made of it: see `loop`."""
