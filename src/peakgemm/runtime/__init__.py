"""Everything between a ``.cu`` file and a running kernel: source, compile, cache, device, launch, arrays."""
