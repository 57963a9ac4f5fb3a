"""Checks of whole logs: verification, statistics and comparison."""
