"""`write_report`: what is in a log directory, as one page."""
