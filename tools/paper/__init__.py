"""A training step on paper: what it would launch and move on a GPU, on a machine without one.

The real step is compiled for a GPU that does nothing (`gpu`), on tensors without storage. Where the
compiler would load a Triton kernel, a stand-in takes its place (`compiler`), and the compiler's
Python code around the kernels is run as it is: so launches are counted, not guessed.

Counted are

- of every kernel that the compiler generates, the bytes of each element that it reads and of each
  that it writes, once, whatever the number of passes (`accesses`);
- of every other operator, its inputs and outputs, and the FLOPs of products and of attention
  (`launches`); our own kernels declare what they move besides.

Not counted is what a kernel reads twice because a cache lost it, what attention moves inside, gaps
between kernels, clocks that fall under load, and a GPU's tuning of kernels. Seconds (`model`) are a
model of all that is counted. Differences between two variants mean more than sums.

It reaches into private parts of PyTorch 2.13 and Triton 3.7, and may need other ones elsewhere.
"""
