"""
Two EEG devices, two frozen models
==================================

To be written.
"""
import matplotlib.pyplot as plt
plt.plot([1, 2])
