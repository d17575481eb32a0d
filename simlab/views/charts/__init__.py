"""What pictures show, as charts that every renderer draws."""
