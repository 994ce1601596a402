"""Thin, optional adapters to other libraries; importing them imports nothing heavy."""
