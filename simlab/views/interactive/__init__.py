"""Interactive pictures with plotly."""
