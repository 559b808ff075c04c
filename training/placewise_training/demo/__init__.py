"""`placewise demo learn`: the learning loop in minutes, by the commands of its users, on a cluster with a truth."""
