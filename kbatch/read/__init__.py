"""Decode buffers, streams and logs; one damage engine for all of them."""
