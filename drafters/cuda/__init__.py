"""DFlash2's small operations as CUDA kernels, and a draft of few launches."""
