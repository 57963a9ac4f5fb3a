"""Kafka's primitive types, as its control records and internal topics have them."""
