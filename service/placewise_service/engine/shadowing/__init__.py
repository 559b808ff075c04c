"""Shadows of AdmitOrWait, Partition, and Place with scope NODE."""
