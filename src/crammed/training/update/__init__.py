"""One update: rows in, new weights out.

planned     what is decided before it begins
build       model, optimizer and step, built in one place for all who need them
step        microbatches, gradients, the optimizer's step
dividing    into which parts rows are cut
objective   what is predicted, and the loss that is differentiated
objectives  others, which are outside the paper's rules
losses      training losses
average     averages of the weights over training
spread      how much the gradients of an update's parts differ
sharpness   gradients at other weights than the model's
shortcuts   ways through the layers that leave out work
growth      depth that doubles in training
precision   number formats: copies of the weights, loss scaling
float8      products in 8 bits
compiling   what the compiler does otherwise on a GPU
regions     how layers are cut to be compiled
lanes       threads that each compute a part of the rows
memory      how many rows fit, and which model is too large
"""
