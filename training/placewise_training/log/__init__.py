"""The exported decision log, read for those who learn from it or judge by it."""
