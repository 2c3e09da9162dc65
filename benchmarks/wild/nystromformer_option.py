"""Transformers, Nystromformer: can the other number be chosen?"""

from transformers import NystromformerConfig, NystromformerModel

config = NystromformerConfig(inv_coeff_init_option=True)
try:
    NystromformerModel(config)
except TypeError as error:
    print(error)
