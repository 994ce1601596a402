"""(problem, device) to kernel and configuration: the candidates, the cost models, the user's tuning entries."""
