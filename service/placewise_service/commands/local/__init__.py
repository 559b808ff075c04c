"""Commands that start the service, or work on its files and its state."""
