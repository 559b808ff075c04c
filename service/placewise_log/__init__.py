"""The decision log and the audit as bytes and objects: for the service, which writes them, and for all who learn."""
