"""Write, rewrite and compact log directories."""
