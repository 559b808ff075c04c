"""The decision log as bytes and objects: for the service, which writes it, and for all who learn from it."""
