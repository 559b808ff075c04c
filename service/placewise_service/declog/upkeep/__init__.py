"""Work on a whole exported log: its numbers, and files of earlier versions."""
