"""A real Apache Kafka broker for tests, foreign clients that write to it, and consumers that read from it."""
