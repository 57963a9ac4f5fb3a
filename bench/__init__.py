"""Benchmarks of kbatch against the other ways of reading record batches from Python; see ``README.md``."""
