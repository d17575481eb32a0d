"""What each lesson asks, a module for each: its predictions, exercises, figures and code to try.
The words are in `simlab/lessons/words`."""
