"""The side files of logs, one module for each kind, and the records of internal topics."""
