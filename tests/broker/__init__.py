"""A real Apache Kafka broker for tests, writers with clients that are not ours, and what a consumer gets of it."""
