"""Sampling on a GPU: every setting of `serving.core.SamplingParams` in Triton kernels, without waiting for the host. It
draws the tokens that `serving.sampling.sample` draws."""

from serving.sampling.device.sampler import DeviceSampler, Work, sampler_bytes

__all__ = ["DeviceSampler", "Work", "sampler_bytes"]
