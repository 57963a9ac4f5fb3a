"""The tables of Kafka's messages, by subject; `kbatch.protocol.schema` reads and explains them."""
