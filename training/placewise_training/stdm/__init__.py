"""IAWP's subtask description matrix, completed from two known metrics."""
