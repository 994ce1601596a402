"""A loop's bill: what each part of a main loop costs."""
