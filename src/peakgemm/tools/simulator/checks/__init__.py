"""What is wrong with an access: its place, its order among the others, registers that are still in use."""
