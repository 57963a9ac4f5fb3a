"""Makers of message sets of magic 0 and 1, which today's brokers no longer write."""
