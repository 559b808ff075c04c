"""The OpenAPI document, its examples, the routes, and the page."""
