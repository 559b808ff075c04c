"""Who calls, and what that allows: tokens, JSON Web Tokens, client certificates."""
