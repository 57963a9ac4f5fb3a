"""Encode columns and single records as batches, and write markers."""
