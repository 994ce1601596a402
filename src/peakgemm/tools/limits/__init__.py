"""What limits a kernel and how fast it can be, said without a GPU: docs/limits.md."""
