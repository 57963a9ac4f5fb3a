"""What is to be read: selection, bounds and formats. No PySpark in here."""
