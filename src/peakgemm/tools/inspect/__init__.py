"""What `peakgemm inspect` shows of a kernel: its subject, its facts, its listing, a comparison, a page."""
