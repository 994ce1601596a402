"""Host arrays and several GPUs: what they should take, and take."""
