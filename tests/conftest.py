"""The models of the tests are tiny: a second thread would only wait for the first."""

import torch

torch.set_num_threads(1)
