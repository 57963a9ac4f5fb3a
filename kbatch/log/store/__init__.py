"""Where logs are: local and remote storage, names of files, and listings."""
