"""Bytes to batches to payloads: where batches begin, whether their bytes are intact, and their compression."""
