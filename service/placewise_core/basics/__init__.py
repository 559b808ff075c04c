"""Tools of every part of core: frozen records, bounded caches, clocks, long work in slices. Know no jobs."""
