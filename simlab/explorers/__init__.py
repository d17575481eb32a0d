"""Explorers: controls and what they show, without widgets."""
