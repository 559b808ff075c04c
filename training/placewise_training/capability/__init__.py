"""Capability and heat of units, fitted to the shares of a site's own tasks."""
