"""The engine: snapshot → decide → reserve → log. Both faces call it; it knows no transport."""
