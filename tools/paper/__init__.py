"""A training step on paper: what it would launch and move on a GPU, on a machine without one.

The real step is compiled for a GPU that does nothing (`gpu`), on tensors without storage. Where the
compiler would load a Triton kernel, a stand-in takes its place (`compiler`), and the compiler's
Python code around the kernels runs unchanged: launches are counted, not guessed.

What is counted:

- for every kernel that the compiler generates, the bytes of each element that it reads and of each
  that it writes, once, whatever the number of passes (`accesses`);
- for every other operator, its inputs and outputs, and the FLOPs of products and attention
  (`launches`).

What is not counted: what a kernel reads twice because it fell out of a cache, what attention moves
internally, gaps between kernels, clocks that fall under load, and a GPU's tuning of kernels.
Seconds (`result`) are a model of everything that is counted. Differences between two variants are
more reliable than sums.

It reaches into private parts of PyTorch 2.13 and Triton 3.7; other versions may differ.
"""
