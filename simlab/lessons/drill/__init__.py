"""The drill: questions whose numbers change, on-call cases, answers said aloud, spaced over days."""
