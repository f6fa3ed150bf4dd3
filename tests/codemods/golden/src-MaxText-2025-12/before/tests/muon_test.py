"""Tests of the dimension numbers."""

import unittest
from optax.contrib import MuonDimensionNumbers as mdn

from MaxText import muon_utils


class TestLogic(unittest.TestCase):

  def test_default(self):
    self.assertEqual(muon_utils.transform_logic(("decoder", "mlp", "kernel")), mdn((0,), (-1,)))
