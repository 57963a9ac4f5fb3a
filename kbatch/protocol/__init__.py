"""Kafka's wire protocol around the batches."""
