"""What runs on the GPU: one file for each of the functions in ``ramen.kernels``. Needs triton."""
