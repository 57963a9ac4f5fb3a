"""The broker's handling of produced batches: validation, offsets, sequence numbers; and the partitioner."""
