"""Encoders, and all that follows from their shape.

encoder       token ids -> hidden states -> logits; how weights begin
layer         one layer: where its norms and residuals are
blocks        what layers are built from: products, norms, activations
attention     attention; ``mixers`` has what can take its place
feedforward   the block after it
positions     how a token knows its place
funnel        layers that compute fewer tokens
matrices      other first values of the layers' matrices; ``cooccurrence`` those of embeddings
electra       what is trained beside a model that finds replaced tokens
classifiers   what fine-tuning puts on an encoder
count         parameters and FLOPs, from the configuration; ``traffic`` has the bytes
heldout       held-out loss
trained       a trained model on disk; ``tensors`` reads files that nobody has checked
"""
