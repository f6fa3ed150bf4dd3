"""The golden trees hold MaxText's tests, which are material here and no tests of ours."""

collect_ignore = ["golden"]
