"""Exports: their runs, tasks, files and tables. No module of this package imports PySpark."""
