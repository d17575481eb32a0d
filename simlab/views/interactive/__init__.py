"""Figures of plotly, to zoom, restyle, embed and send on."""
