"""Convert batches to another magic, and recompress them."""
