"""Plans a read: selection, bounds, splits and value formats. Nothing here imports PySpark."""
