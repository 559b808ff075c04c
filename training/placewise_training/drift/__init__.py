"""Does a cluster still look as it did? Compares two stretches of its log, and judges no policy."""
