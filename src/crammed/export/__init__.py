"""Trained models for other programs.

huggingface       a folder for transformers, checked against our logits
native            which built-in class of transformers computes the same
modeling_crammed  the class for models that none of them can represent; it is copied into exports
card              the model card
onnx              the same model as model.onnx
pushing           uploads a folder to the Hugging Face hub
"""
