"""Lazy reads of logs: a table of records that engines query, with what their filters exclude left unread."""
