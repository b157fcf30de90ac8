"""Every Triton kernel that a replica can launch, compiled for Hopper on any machine.

variant.py records what a launcher asks of the compiler, as data; lora.py and serving.py call the launchers with every
shape a replica can reach; build.py compiles a variant and reads the machine code; table.py keeps the results by digest.

A new kernel is one more call in `serving.launches`: its launcher with tensors of `meta`. Run then
`python -m benchmarks.gpu.compile`, which compiles what has changed on both versions of Triton.
"""
