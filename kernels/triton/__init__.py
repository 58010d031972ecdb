"""GPU kernels in Triton, one operation per file. Each is proved in Triton's interpreter beside the plain torch references.

Nothing is tuned at run time: tile sizes come from `configs.py`. Importing this package needs triton, not a GPU.
"""
