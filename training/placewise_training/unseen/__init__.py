"""How the placement policies do on hardware that none of their nets was trained on."""
