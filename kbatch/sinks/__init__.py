"""Where an export goes. No PySpark in here."""
