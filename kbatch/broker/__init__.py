"""What a broker does to a produced batch: validation, offsets, sequence numbers; and the partitioner."""
