"""What the lessons ask and how they judge: predictions, exercises, figures, and the words of both
languages. Nothing here shows anything; `simlab.apps` and the command line do."""
