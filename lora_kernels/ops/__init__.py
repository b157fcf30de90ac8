"""The operations, one per file: its constants, its reference in plain torch, its Triton kernel, its launcher.

shrink.py and expand.py are the halves of `lora_apply`, columns.py the steps of the latter. launch.py: what launches are
given; tuning.py: their sizes.
torch_path.py and triton_path.py are the backends made of them; the third is `lora_kernels.cpu`. Imports storage, batch,
spec and errors alone.
"""
