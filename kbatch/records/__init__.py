"""The data of a table, and its Arrow columns."""
