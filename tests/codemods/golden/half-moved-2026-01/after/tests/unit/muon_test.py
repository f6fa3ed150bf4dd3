"""Tests of the dimension numbers."""

import unittest
from MaxText.third_party.optax_muon.dimension_numbers import MuonDimensionNumbers as mdn

from maxtext.utils import muon_utils


class TestLogic(unittest.TestCase):

  def test_default(self):
    self.assertEqual(muon_utils.transform_logic(("decoder", "mlp", "kernel")), mdn((0,), (-1,)))
