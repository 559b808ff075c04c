"""The log of views: notes that each live view takes, and their writing."""
