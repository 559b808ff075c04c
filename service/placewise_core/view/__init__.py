"""The cluster as arrays, kept up to date by events. Decides nothing."""
