"""Data of a log for those who learn to choose: transitions, and the worth of choices."""
