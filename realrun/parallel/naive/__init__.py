"""The teaching forms: short, for one stage and one backward at a time.

No form that a plan runs with is built on them.
"""
