"""FP32 products on tensor cores: when to take them, and what a call of theirs enqueues."""
