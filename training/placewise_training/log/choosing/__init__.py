"""What a log tells those who learn to choose: transitions, and the worth of choices."""
