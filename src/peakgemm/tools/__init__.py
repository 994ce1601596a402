"""The instruments: what shows, times and checks kernels; no product needs them."""
