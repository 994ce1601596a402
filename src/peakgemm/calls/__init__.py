"""From a call to a launch: request, canonical problem, plan; the eager path; host arrays in tiles."""
