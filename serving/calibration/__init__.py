"""Steps of a real engine in one thread, timed: the child process of `capacity calibrate`. May import torch."""
