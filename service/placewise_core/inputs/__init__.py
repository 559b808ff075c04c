"""Inputs of nets: columns by name, and the encoders that fill them. Know no net."""
