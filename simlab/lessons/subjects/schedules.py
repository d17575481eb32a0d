"""What the lesson asks: predictions, exercises, figures, and code that answers follow-ups."""
