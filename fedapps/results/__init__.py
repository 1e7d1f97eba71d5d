"""The run folder: what a run leaves behind."""
