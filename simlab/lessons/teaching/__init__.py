"""A class: lessons to hand out, what learners hand in, and the template of a lesson of one's own."""
