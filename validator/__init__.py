"""image-matrix: which PyTorch-CUDA image really runs sparse tensors, answered by test."""

__version__ = "0.1.0"
