"""Where: decides a Place command on a view, and has the store hold it."""
